"""Matrix products, contractions, convolutions, pooling, linear algebra."""
