"""Where two models part."""
