"""Vocabularies are compared by the bytes of each id."""

import pytest
from tiny_lm import WORDS, tokenizer

from posttrain.policies.vocabulary import Vocabulary, first_difference, same_vocabulary, vocabulary
from posttrain.registry import ConfigError


def byte_level(special=("<eos>",), texts=("hello world", "hello there")):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=275, initial_alphabet=alphabet, special_tokens=list(special), show_progress=False
    )
    made.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token=special[0])


def sentencepiece(*more):
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    names = ["<unk>", "</s>", "<0x0A>", "▁hello", "é", *more]
    made = Tokenizer(models.Unigram([(name, -1.0) for name in names], unk_id=0))
    made.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", eos_token="</s>")


def test_a_byte_level_token_stands_for_its_bytes_and_a_special_one_for_its_text():
    found = vocabulary(byte_level())
    assert found.tokens[0] == b"<eos>"
    assert sorted(token for token in found.tokens if len(token) == 1) == [bytes([byte]) for byte in range(256)]
    assert b" world" in found.tokens
    assert found.size == len(found.tokens) == 270


def test_every_byte_level_id_decodes_to_its_bytes():
    made = byte_level()
    for index, token in enumerate(vocabulary(made).tokens):
        assert made.decode([index]).encode() == token or "\ufffd" in made.decode([index])


def test_sentencepiece_writes_blanks_and_bytes_in_its_own_way():
    assert vocabulary(sentencepiece()).tokens == (b"<unk>", b"</s>", b"\n", b" hello", "é".encode())


@pytest.mark.parametrize("token", ["<0xzz>", "<0x+1>", "<0x 1>", "<0x1>", "<0x1_>"])
def test_a_token_that_only_looks_like_a_byte_stands_for_its_text(token):
    assert vocabulary(sentencepiece(token)).tokens[-1] == token.encode()


@pytest.mark.parametrize(("token", "byte"), [("<0x00>", b"\0"), ("<0xFf>", b"\xff")])
def test_a_byte_is_written_in_two_hexadecimal_digits(token, byte):
    assert vocabulary(sentencepiece(token)).tokens[-1] == byte


def test_equal_tokenizers_are_equal_whatever_the_size_of_an_embedding():
    first, second = vocabulary(tokenizer()), vocabulary(tokenizer(chat=None))
    same_vocabulary(first, second)
    assert first.digest == second.digest
    assert first.size == len(WORDS)


def test_two_tokenizers_of_one_size_are_refused_with_the_first_id_that_differs():
    swapped = (*WORDS[:20], WORDS[21], WORDS[20], *WORDS[22:])
    with pytest.raises(ConfigError, match=r"first id that differs is 20: b'w14' for the student \(60 ids\), b'w15'"):
        same_vocabulary(vocabulary(tokenizer()), vocabulary(tokenizer(words=swapped)))


def test_a_token_more_is_a_difference_too():
    short, long = Vocabulary((b"a", b"b")), Vocabulary((b"a", b"b", b"c"))
    assert first_difference(short, long) == first_difference(long, short) == 2
    with pytest.raises(ConfigError, match="2: nothing for the student"):
        same_vocabulary(short, long)
    assert short.digest != long.digest


def test_ids_that_stand_for_nothing_are_equal_to_each_other_alone():
    gap = Vocabulary((b"a", None, b"c"))
    assert first_difference(gap, Vocabulary((b"a", None, b"c"))) is None
    assert first_difference(gap, Vocabulary((b"a", b"", b"c"))) == 1
    assert gap.digest != Vocabulary((b"a", b"", b"c")).digest
