"""A real small model to try the gateway with: a server process for it, and whoever starts and stops that process."""
