"""The only folder that says redis: the road to the stores, and what is kept in them."""
