import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import BertConfig, DistilBertConfig, XLNetConfig, XLNetForQuestionAnswering
from transformers.modeling_outputs import BaseModelOutput

from portico import InputError
from portico.mrc import BeamSearchQAHead, ExtractiveQAHead, ExtractiveQAWithConfidenceHead
from portico.mrc.models.heads import BEAM_OUTPUTS, question_and_passage


def config(**fields):
    return BertConfig(hidden_size=8, num_attention_heads=2, **fields)


@pytest.fixture
def hidden():
    return torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(0))


def labels(start=(1, 2), end=(3, 2), target_type=(1, 0)):
    names = ("start_positions", "end_positions", "target_type")
    return {name: torch.tensor(value) for name, value in zip(names, (start, end, target_type), strict=True)}


def test_the_loss_is_the_mean_of_start_end_and_type(hidden):
    head = ExtractiveQAHead(config()).eval()
    output = head(BaseModelOutput(hidden), **labels())
    expected = (
        cross_entropy(output.start_logits, torch.tensor([1, 2]))
        + cross_entropy(output.end_logits, torch.tensor([3, 2]))
        + cross_entropy(output.target_type_logits, torch.tensor([1, 0]))
    ) / 3
    assert output.loss == expected
    assert output.start_logits.shape == (2, 6)
    assert output.target_type_logits.shape == (2, 5)


def test_positions_beyond_the_row_are_ignored(hidden):
    head = ExtractiveQAHead(config()).eval()
    output = head(BaseModelOutput(hidden), **labels(start=(1, 77), end=(3, 6)))
    first = slice(0, 1)
    expected = (
        cross_entropy(output.start_logits[first], torch.tensor([1]))
        + cross_entropy(output.end_logits[first], torch.tensor([3]))
        + cross_entropy(output.target_type_logits, torch.tensor([1, 0]))
    ) / 3
    assert output.loss == expected


def test_labels_may_have_a_dimension_of_one(hidden):
    head = ExtractiveQAHead(config()).eval()
    flat = head(BaseModelOutput(hidden), **labels())
    columns = head(BaseModelOutput(hidden), **{name: value[:, None] for name, value in labels().items()})
    assert flat.loss == columns.loss


@pytest.mark.parametrize("missing", ["start_positions", "end_positions", "target_type"])
def test_without_all_three_labels_there_is_no_loss(hidden, missing):
    given = {name: value for name, value in labels().items() if name != missing}
    assert ExtractiveQAHead(config())(BaseModelOutput(hidden), **given).loss is None


def test_encoder_tuple_returns_a_tuple(hidden):
    head = ExtractiveQAHead(config()).eval()
    named = head(BaseModelOutput(hidden, hidden_states=(hidden,)), **labels())
    plain = head((hidden, (hidden,)), **labels())
    assert isinstance(plain, tuple)
    assert [type(one) for one in plain] == [torch.Tensor] * 4 + [tuple]
    assert plain[0] == named.loss
    assert torch.equal(plain[2], named.end_logits)
    assert named.hidden_states[0] is hidden
    assert len(head((hidden,))) == 3


def test_the_override_sets_the_number_of_answer_types(hidden):
    head = ExtractiveQAHead(config(), num_labels_override=3)
    assert (head.num_labels, head.num_classification_head_labels) == (2, 3)
    assert head(BaseModelOutput(hidden)).target_type_logits.shape == (2, 3)


def test_a_pooled_first_token_is_left_out_of_a_tuple(hidden):
    head = ExtractiveQAHead(config()).eval()
    pooled = hidden[:, 0]
    assert len(head((hidden, pooled))) == 3
    assert head((hidden, pooled, (hidden,)))[-1][0] is hidden


@pytest.mark.parametrize(
    ("encoder", "rate"),
    [
        (config(classifier_dropout=0.3, hidden_dropout_prob=0.2), 0.3),
        (config(hidden_dropout_prob=0.2), 0.2),
        (DistilBertConfig(dim=8, n_heads=2), 0.0),
    ],
)
def test_the_type_classifier_has_the_dropout_of_its_encoder(encoder, rate):
    assert ExtractiveQAHead(encoder).classifier.dropout.p == rate


def test_confidence_features_are_returned_with_the_logits(hidden):
    head = ExtractiveQAWithConfidenceHead(config(sep_token_id=3)).eval()
    tokens = torch.tensor([[9, 5, 3, 6, 7, 3], [9, 5, 5, 3, 6, 3]])
    output = head(BaseModelOutput(hidden), input_ids=tokens, attention_mask=torch.ones_like(tokens))
    logits = ["start_logits", "end_logits", "target_type_logits"]
    assert list(output) == [*logits, "start_stdev", "end_stdev", "query_passage_similarity"]
    assert output.start_stdev.shape == output.end_stdev.shape == (2, 6)
    assert (output.start_stdev > 0).all()
    plain = ExtractiveQAHead(config()).eval()
    plain.load_state_dict(head.state_dict())
    assert torch.equal(output.start_logits, plain(BaseModelOutput(hidden)).start_logits)


def test_training_returns_no_confidence_features(hidden):
    head = ExtractiveQAWithConfidenceHead(config())
    assert head(BaseModelOutput(hidden), **labels()).start_stdev is None
    assert head(BaseModelOutput(hidden)).start_stdev is not None
    assert len(head((hidden,), **labels())) == 4
    assert len(head.eval()((hidden,), **labels())) == 7


def test_without_dropout_the_logits_do_not_vary(hidden):
    head = ExtractiveQAWithConfidenceHead(config(output_dropout_rate=0.0))
    assert (head(BaseModelOutput(hidden)).start_stdev == 0).all()


def test_other_numbers_of_labels_and_a_single_dropout_pass_are_refused():
    with pytest.raises(InputError, match="takes 2 labels, and got 3"):
        ExtractiveQAHead(config(num_labels=3))
    with pytest.raises(InputError, match=r"decoding_times_with_dropout=1.*set it to 2 or more"):
        ExtractiveQAWithConfidenceHead(config(decoding_times_with_dropout=1))


def test_similarity_is_the_mean_over_the_passage_of_the_nearest_question_token():
    head = ExtractiveQAWithConfidenceHead(config())
    states = torch.zeros(1, 6, 8)
    states[0, [0, 3], 0] = -1.0  # special tokens around the question, which would be nearer
    states[0, 1, 0], states[0, 2, 1] = 2.0, 5.0  # the question: two directions
    states[0, 4, 1], states[0, 5, 0] = 3.0, -1.0  # the passage: the second, and against the first
    types = torch.tensor([[0, 0, 0, 0, 1, 1]])
    similarity = head(BaseModelOutput(states), token_type_ids=types).query_passage_similarity
    # Cosines plus one: 2 for the one token, 1 (at a right angle) for the other.
    assert similarity.tolist() == [1.5]


def test_similarity_is_zero_without_types_and_separators(hidden):
    head = ExtractiveQAWithConfidenceHead(config())
    assert head(BaseModelOutput(hidden)).query_passage_similarity.tolist() == [0, 0]


def test_question_and_passage_by_separators():
    tokens = torch.tensor([[9, 5, 3, 3, 6, 7, 3, 0]])
    question, passage = question_and_passage(tokens, (tokens > 0).long(), torch.zeros_like(tokens), sep_token_id=3)
    assert question.int().tolist() == [[0, 1, 0, 0, 0, 0, 0, 0]]
    assert passage.int().tolist() == [[0, 0, 0, 0, 1, 1, 0, 0]]


@pytest.fixture
def xlnet():
    torch.manual_seed(0)
    return XLNetForQuestionAnswering(XLNetConfig(vocab_size=40, d_model=8, n_layer=1, n_head=2, d_inner=8, dropout=0))


def beam_head(xlnet):
    head = BeamSearchQAHead(xlnet.config)
    parts = ("start_logits", "end_logits", "answer_class")
    weights = {name: value for name, value in xlnet.state_dict().items() if name.startswith(parts)}
    head.load_state_dict(weights)
    return head


def beam_inputs():
    tokens = torch.randint(5, 40, (3, 12), generator=torch.Generator().manual_seed(1))
    mask = torch.zeros(3, 12)
    mask[:, :4] = 1
    return tokens, {"p_mask": mask, "cls_index": torch.tensor([11, 11, 10])}


def test_beams_equal_those_of_xlnet(xlnet):
    tokens, inputs = beam_inputs()
    expected = xlnet.eval()(tokens, **inputs)
    hidden = xlnet.transformer(tokens).last_hidden_state
    output = beam_head(xlnet).eval()(BaseModelOutput(hidden), **inputs)
    assert list(output) == list(BEAM_OUTPUTS)
    for name in BEAM_OUTPUTS:
        assert torch.equal(output[name], expected[name]), name


@pytest.mark.parametrize("impossible", [None, torch.tensor([0.0, 1.0, 0.0])])
def test_the_beam_loss_equals_that_of_xlnet(xlnet, impossible):
    tokens, inputs = beam_inputs()
    inputs |= {"start_positions": torch.tensor([5, 6, 7]), "end_positions": torch.tensor([6, 6, 9])}
    inputs["is_impossible"] = impossible
    hidden = xlnet.transformer(tokens).last_hidden_state
    expected = xlnet(tokens, **inputs).loss
    head = beam_head(xlnet)
    output = head(BaseModelOutput(hidden), **inputs)
    assert list(output) == ["loss"]
    assert output.loss == expected
    assert list(head.eval()(BaseModelOutput(hidden), **inputs)) == ["loss", *BEAM_OUTPUTS]


def test_short_rows_have_fewer_beams(hidden):
    output = BeamSearchQAHead(config(start_n_top=9, end_n_top=4)).eval()((hidden,))
    assert output[0].shape == (2, 6)
    assert output[2].shape == (2, 24)
    assert output[4].shape == (2,)
