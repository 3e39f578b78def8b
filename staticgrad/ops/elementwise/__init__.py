"""Operations that compute each element of the result from one element per input."""
