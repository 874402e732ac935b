"""The job `reconcile`: catalog, listing and objects compared, orphans given to their owners."""
