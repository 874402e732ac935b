"""Tier 2 in a bucket of S3, or of what speaks like it. botocore is spoken here and nowhere else."""
