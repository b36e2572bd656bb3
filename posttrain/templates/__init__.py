"""Starting points that `posttrain new` copies."""
