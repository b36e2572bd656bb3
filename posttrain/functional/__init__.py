"""Pure tensor functions: nothing is reduced over the batch, each formula exists once.

Symbols: P problems, G completions each, B = P*G rows in group-major order, T completion tokens (right-padded),
V vocabulary, K support. A mask is bool [B, T]. Empty masks give zeros, never NaN. What a function is not meant to
differentiate (advantages, references, teachers of a ratio) it detaches, visibly.
"""
