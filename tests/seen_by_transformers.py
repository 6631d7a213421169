"""Answers about pictures by transformers: a folder, a text with their sign and pictures as JSON from stdin.

Of each picture the prompt's tokens, the likeliest answer's and their logprobs, as a list to stdout.
"""

import json
import sys
from base64 import b64decode

import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

_TOKENS = 6

if __name__ == "__main__":
    folder, text, pictures = json.load(sys.stdin)
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    processor, answers = AutoProcessor.from_pretrained(folder), []
    for height, width, data in pictures:
        picture = Image.frombytes("RGB", (width, height), b64decode(data))
        tensors = processor(text=[text], images=[picture], return_tensors="pt")
        prompt = tensors["input_ids"][0].tolist()
        with torch.inference_mode():
            result = model.generate(
                **tensors, max_new_tokens=_TOKENS, do_sample=False, output_logits=True, return_dict_in_generate=True
            )
        tokens = result.sequences[0, len(prompt) :].tolist()
        rows = [logits[0].log_softmax(-1) for logits in result.logits]
        answers.append([prompt, tokens, [float(row[token]) for row, token in zip(rows, tokens, strict=True)]])
    json.dump(answers, sys.stdout)
