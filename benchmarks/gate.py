"""How many made-up results the claim gate lets pass: python benchmarks/gate.py [--docs DIR] [METHOD ...]

Each number of two or three places is put into a sentence of hand-written text on a method's page. The fewer of them
pass, the more a number that passes says. What passes by chance is as near to a published finding as its places tell.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from posttrain.evaluation import facts
from posttrain.reporting.claims import check_text
from posttrain.reporting.licence import licence_of
from posttrain.reporting.reading import read_suite

SENTENCES = ("At tier L1 accuracy is {}.", "Accuracy is {}.", "Entropy is {}.", "It is {}.")
NUMBERS = {
    "per cent": [f"{i} %" for i in range(1, 100)],
    "0.xx": [f"0.{i:02d}" for i in range(1, 100)],
    "0.xxx": [f"0.{i:03d}" for i in range(1, 1000, 7)],
}


def main() -> None:
    """Prints a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("methods", nargs="*", default=["sparse-opd", "grpo", "dpo"], metavar="METHOD")
    parser.add_argument(
        "--docs", type=Path, default=Path(__file__).parents[1], metavar="DIR", help="the folder of docs/"
    )
    options = parser.parse_args()
    suite, registered = read_suite(options.docs), [method.name for method in facts.methods()]
    print(f"| method | sentence | {' | '.join(NUMBERS)} |\n| --- | --- |{' ---: |' * len(NUMBERS)}")
    for method in options.methods:
        licence = licence_of(suite.of(method))
        for sentence in SENTENCES:
            texts = {kind: [sentence.format(number) for number in numbers] for kind, numbers in NUMBERS.items()}
            shares = [
                sum(not check_text("page", text, licence, (), method, registered) for text in some) / len(some)
                for some in texts.values()
            ]
            print(f"| {method} | {sentence.format('...')} | {' | '.join(f'{share:.2f}' for share in shares)} |")


if __name__ == "__main__":
    main()
