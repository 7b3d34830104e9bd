"""Show models and facts where Python runs: a summary of a model, tables in notebooks, and data frames."""

from explorer.base.features import Feature

FEATURE = Feature(
    functions={
        "count": "summaries.count",
        "progress_bar": "progress_bar.progress_bar",
        "summary": "summaries.summary",
    },
    displays={
        "html": "fact_html.draw_fact",
        "frame": "fact_frame.build_frame",
        "text": "fact_html.write_summary",
        "document": "fact_html.build_document",
    },
)
