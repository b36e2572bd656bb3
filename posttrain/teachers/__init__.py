"""Teachers: completions and positions in, what the teacher says about them out. Which one is a line of the config."""
