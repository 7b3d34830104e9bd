"""Coverage-guided fuzzing of everything that reads a stranger's file.

    python -m tests.fuzz                      lists the targets
    python -m tests.fuzz onnx --minutes 10    runs one
    python -m tests.fuzz onnx --keep          and takes what it found worth keeping into the corpus

Run by hand: atheris is needed (`pip install .[fuzz]`) and ten minutes a target. What earlier runs found is
kept, minimized, in `corpus/`, and `tests/test_fuzz_corpus.py` replays it in seconds, without atheris.
"""
