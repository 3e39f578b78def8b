"""The intermediate representation: sizes, types, nodes, graphs and op records."""
