"""Logprobs of answers by transformers: a folder, a prompt and answers as JSON from stdin, a list of sums to stdout."""

import json
import sys

import torch
from transformers import AutoModelForCausalLM

if __name__ == "__main__":
    folder, prompt, answers = json.load(sys.stdin)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        rows = model(torch.tensor([prompt + answer for answer in answers])).logits.log_softmax(-1)
    places = [row[len(prompt) - 1 :] for row in rows]
    sums = [
        sum(float(row[place, token]) for place, token in enumerate(answer))
        for answer, row in zip(answers, places, strict=True)
    ]
    json.dump(sums, sys.stdout)
