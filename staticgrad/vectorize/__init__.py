"""``vmap``: the rules that give every node a leading axis of examples."""
