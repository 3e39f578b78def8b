"""The memory planner: liveness, in-place writing, offsets in the arena, regions."""
