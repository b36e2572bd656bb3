"""From artifacts to pages, figures and reports. Nothing here trains, and nothing here imports torch.

A page is a pure function of artifacts, manifests, templates and a description of the registry that comes in as plain
data. Numbers have one formatter, and a sentence needs a licence (`licence.py`).
"""
