"""Operations that move, select or join elements and compute none."""
