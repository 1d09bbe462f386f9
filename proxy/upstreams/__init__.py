"""Upstreams: one attempt (`client`), many attempts (`dispatch`), and the headers that pass (`headers`)."""
