"""Speed and memory as ratios, side by side in one run: `python -m tests.bench`.

Absolute times drift from machine to machine and from hour to hour; a ratio to something well known, taken
alternately in the same minute, does not. No test asserts a time: these are to be run and read.
"""
