"""The job `compact`: small and half-dead chunks rewritten, and proposed to their owners."""
