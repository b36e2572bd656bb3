"""One file per track. Importing one registers it."""
