"""Random graphs tiled, and random changes of graphs proved: what a hunt for false answers tries.

`python -m tests.hunt graphs --minutes 10` (or `mutations`) tries seed after seed, and writes a minimized file
for each find. What a case is follows from its seed and its number of steps alone.
"""
