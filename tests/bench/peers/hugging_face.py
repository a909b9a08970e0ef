"""The shape of Llama 3.2 3B in transformers, with random weights, and its adapters in PEFT: what
pytorch_lora.py trains and what hugging_face_folder.py writes and reads."""
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

ROPE = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def make_config(layers=28):
    return LlamaConfig(
        vocab_size=128256, hidden_size=3072, intermediate_size=8192, num_hidden_layers=layers,
        num_attention_heads=24, num_key_value_heads=8, head_dim=128, rms_norm_eps=1e-5,
        max_position_embeddings=131072, tie_word_embeddings=True, rope_parameters=ROPE,
        bos_token_id=128000, eos_token_id=128001)


def make_model(layers=28):
    """In bf16, initialised on the GPU: on a processor that takes a minute."""
    config = make_config(layers)
    config._attn_implementation = "sdpa"
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            model = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(torch.float32)
    return model


def lora_of(model):
    """Rank 16 and alpha 32 on all linear maps of the layers: 24,313,856 numbers of 28 layers."""
    config = LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules=TARGETS,
                        task_type="CAUSAL_LM")
    return get_peft_model(model, config)  # adapters in fp32 beside a base in bf16
