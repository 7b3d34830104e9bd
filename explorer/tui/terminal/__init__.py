"""Support for terminals over SSH, for the Linux console, and for the clipboard."""
