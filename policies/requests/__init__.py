"""What clients may ask: one module an endpoint, the strict reading of a body, and the dialects."""
