"""Upstreams: the way there (`connections`), one attempt (`client`), many (`dispatch`), what heads say (`headers`)."""
