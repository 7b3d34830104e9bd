"""Maps matrix products to machines with several memories: costs, search, code and proof.

`nest` counts the elements that each level moves. `cost` turns the counts into bytes, capacity, cycles and
energy. `search` finds the best mapping. `emit_c` writes the loops as C, and `proof` compiles and runs them.
"""
