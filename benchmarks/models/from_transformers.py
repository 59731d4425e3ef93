"""Small models of transformers with random weights; dropout is off, so that steps can be compared."""

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from benchmarks.models.case import Case

VOCABULARY, LENGTH, BATCH, IMAGE = 96, 12, 3, 32

_TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
}
_GPT = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}
_IMAGE = {
    "image_size": IMAGE,
    "patch_size": 8,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
_ENCODER_DECODER = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "pad_token_id": 0,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 32,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
_CONV_AUDIO = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "conv_dim": (16, 16),
    "conv_stride": (4, 2),
    "conv_kernel": (8, 4),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "vocab_size": 12,
    "mask_time_prob": 0.0,
    "apply_spec_augment": False,
    "classifier_proj_size": 16,
}


def _causal() -> dict[str, Any]:
    ids = torch.randint(3, VOCABULARY, (BATCH, LENGTH))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def _classified() -> dict[str, Any]:
    ids = torch.randint(3, VOCABULARY, (BATCH, LENGTH))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.arange(BATCH) % 2}


def _pixels() -> dict[str, Any]:
    return {"pixel_values": torch.randn(BATCH, 3, IMAGE, IMAGE), "labels": torch.arange(BATCH) % 2}


def _large_pixels() -> dict[str, Any]:
    return {"pixel_values": torch.randn(BATCH, 3, 64, 64), "labels": torch.arange(BATCH) % 2}


def _translated() -> dict[str, Any]:
    ids = torch.randint(3, VOCABULARY, (BATCH, LENGTH))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.flip(1)}


def _spoken() -> dict[str, Any]:
    return {"input_values": torch.randn(BATCH, 400), "labels": torch.arange(BATCH) % 2}


def _heard() -> dict[str, Any]:
    ids = torch.randint(3, VOCABULARY, (BATCH, LENGTH))
    return {"input_features": torch.randn(BATCH, 20, 40), "labels": ids}


def _paired() -> dict[str, Any]:
    ids = torch.randint(3, VOCABULARY, (BATCH, LENGTH))
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "return_loss": True,
        "pixel_values": torch.randn(BATCH, 3, IMAGE, IMAGE),
    }


def _of_output(output: Any) -> Any:
    return output.loss


def _case(
    model: str, batch: Callable[[], dict[str, Any]], settings: Mapping[str, Any], options: Mapping[str, Any]
) -> Case:
    import transformers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind = getattr(transformers, model)
        config = kind.config_class(**settings)
        for part in (config, *(c for c in vars(config).values() if hasattr(c, "to_dict"))):
            for name, value in list(vars(part).items()):
                if "drop" in name and isinstance(value, float):
                    setattr(part, name, 0.0)
            part.use_cache = False
        if hasattr(config, "num_local_experts"):
            config._experts_implementation = "batched_mm"  # torch multiplies groups in FP32 alone
        module = kind._from_config(config, attn_implementation="sdpa" if kind._supports_sdpa else "eager")
    return Case(module=module.train(), inputs=batch(), loss=_of_output, options=dict(options))


def _row(
    model: str, batch: Callable[[], dict[str, Any]], settings: Mapping[str, Any], **options: Any
) -> Callable[[], Case]:
    return partial(_case, model, batch, settings, options)


_LLAMA = _TEXT | {"num_key_value_heads": 2}
_CLIP = {
    "text_config": _TEXT | {"projection_dim": 16, "eos_token_id": 2, "bos_token_id": 1},
    "vision_config": _IMAGE | {"projection_dim": 16},
    "projection_dim": 16,
}

CASES: Mapping[str, Callable[[], Case]] = {
    "albert": _row("AlbertForMaskedLM", _causal, _TEXT | {"embedding_size": 16}),
    "bart": _row("BartForConditionalGeneration", _translated, _ENCODER_DECODER),
    "beit": _row("BeitForImageClassification", _pixels, _IMAGE),
    "bert": _row("BertForMaskedLM", _causal, _TEXT),
    "bert_classifier": _row("BertForSequenceClassification", _classified, _TEXT),
    "bloom": _row(
        "BloomForCausalLM", _causal, {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4}
    ),
    "clip": _row("CLIPModel", _paired, _CLIP),
    "convnext": _row(
        "ConvNextForImageClassification",
        _pixels,
        {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "image_size": IMAGE},
    ),
    "deberta_v2": _row(
        "DebertaV2ForMaskedLM",
        _causal,
        _TEXT | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8},
    ),
    "dinov2": _row("Dinov2ForImageClassification", _pixels, _IMAGE),
    "distilbert": _row(
        "DistilBertForMaskedLM",
        _causal,
        {
            "vocab_size": VOCABULARY,
            "dim": 32,
            "n_layers": 2,
            "n_heads": 4,
            "hidden_dim": 48,
            "max_position_embeddings": 32,
        },
    ),
    "electra": _row("ElectraForMaskedLM", _causal, _TEXT | {"embedding_size": 16}),
    "falcon": _row(
        "FalconForCausalLM", _causal, _TEXT | {"num_kv_heads": 2, "new_decoder_architecture": True}
    ),
    "gemma": _row("GemmaForCausalLM", _causal, _LLAMA | {"head_dim": 8}),
    "gemma2": _row("Gemma2ForCausalLM", _causal, _LLAMA | {"head_dim": 8}),
    "gpt2": _row("GPT2LMHeadModel", _causal, _GPT),
    "gpt_neo": _row(
        "GPTNeoForCausalLM",
        _causal,
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 4,
            "max_position_embeddings": 32,
        },
    ),
    "gpt_neox": _row("GPTNeoXForCausalLM", _causal, _TEXT),
    "gptj": _row("GPTJForCausalLM", _causal, _GPT | {"rotary_dim": 4}),
    "hubert": _row("HubertForSequenceClassification", _spoken, _CONV_AUDIO),
    "llama": _row("LlamaForCausalLM", _causal, _LLAMA),
    "mamba": _row(
        "MambaForCausalLM",
        _causal,
        {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4},
    ),
    "marian": _row("MarianMTModel", _translated, _ENCODER_DECODER | {"forced_eos_token_id": 2}),
    "mistral": _row("MistralForCausalLM", _causal, _LLAMA | {"sliding_window": 4}),
    "mixtral": _row("MixtralForCausalLM", _causal, _LLAMA | {"num_local_experts": 4}),
    "mobilevit": _row(
        "MobileViTForImageClassification",
        _large_pixels,
        {
            "image_size": 64,
            "hidden_sizes": [16, 24, 32],
            "neck_hidden_sizes": [8, 8, 16, 16, 24, 24, 32],
            "num_attention_heads": 4,
        },
    ),
    "mpnet": _row("MPNetForMaskedLM", _causal, _TEXT),
    "opt": _row("OPTForCausalLM", _causal, _TEXT | {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "pegasus": _row("PegasusForConditionalGeneration", _translated, _ENCODER_DECODER),
    "phi": _row("PhiForCausalLM", _causal, _TEXT),
    "phi3": _row("Phi3ForCausalLM", _causal, _LLAMA),
    "qwen2": _row("Qwen2ForCausalLM", _causal, _LLAMA),
    "qwen3": _row("Qwen3ForCausalLM", _causal, _LLAMA | {"head_dim": 8}),
    "regnet": _row(
        "RegNetForImageClassification",
        _pixels,
        {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 24], "depths": [1, 1, 1, 1], "groups_width": 8},
    ),
    "resnet": _row(
        "ResNetForImageClassification",
        _pixels,
        {"embedding_size": 8, "hidden_sizes": [16, 16, 24, 32], "depths": [1, 1, 1, 1]},
    ),
    "roberta": _row("RobertaForMaskedLM", _causal, _TEXT),
    "segformer": _row(
        "SegformerForImageClassification",
        _large_pixels,
        {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "decoder_hidden_size": 16},
    ),
    "siglip_vision": _row(
        "SiglipForImageClassification", _pixels, {"vision_config": _IMAGE, "text_config": _TEXT}
    ),
    "swin": _row(
        "SwinForImageClassification",
        _pixels,
        {
            "image_size": IMAGE,
            "patch_size": 2,
            "embed_dim": 8,
            "depths": [2, 1],
            "num_heads": [2, 4],
            "window_size": 4,
        },
    ),
    "t5": _row(
        "T5ForConditionalGeneration",
        _translated,
        {
            "vocab_size": VOCABULARY,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 48,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
        },
    ),
    "vit": _row("ViTForImageClassification", _pixels, _IMAGE),
    "wav2vec2": _row("Wav2Vec2ForSequenceClassification", _spoken, _CONV_AUDIO),
    "whisper": _row(
        "WhisperForConditionalGeneration",
        _heard,
        _ENCODER_DECODER | {"num_mel_bins": 20, "max_source_positions": 20, "max_target_positions": 32},
    ),
    "xlnet": _row(
        "XLNetLMHeadModel",
        _causal,
        {"vocab_size": VOCABULARY, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48},
    ),
}
