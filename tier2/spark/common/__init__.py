"""What the jobs, the source and the sink share: sessions, frames, progress, the store's socket."""
