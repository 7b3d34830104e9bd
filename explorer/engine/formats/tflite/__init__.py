"""TFLite files, read."""
