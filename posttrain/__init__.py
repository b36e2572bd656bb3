"""posttrain: post-training research in which a claim cannot outrun its evidence."""

__version__ = "0.1.0"
