"""`vllm.LLM.generate`, in a process of its own: python -m ops.bench.batch.generate JOB.json RESULT.json"""

import json
import os
import sys
import time
from pathlib import Path

from ops.bench.disagg.play import Cpu


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    llm = LLM(**job["engine"])
    params = SamplingParams(temperature=0, max_tokens=job["tokens"], ignore_eos=True)
    tokenizer = llm.get_tokenizer()

    def prompts(texts: list[str]) -> list[TokensPrompt]:
        conversations = [[{"role": "user", "content": text}] for text in texts]
        ids = tokenizer.apply_chat_template(conversations, add_generation_prompt=True, tokenize=True, return_dict=False)
        return [TokensPrompt(prompt_token_ids=each) for each in ids]

    llm.generate(prompts(job["warm_up"]), params, use_tqdm=False)
    inputs = prompts(job["prompts"])
    cpu = Cpu({"engine": [os.getpid()]})
    began = time.perf_counter()
    answers = llm.generate(inputs, params, use_tqdm=False)
    seconds = time.perf_counter() - began
    result = {
        "seconds": seconds,
        "cores": cpu.cores(),
        "prompt_tokens": sum(len(each["prompt_token_ids"]) for each in inputs),
        "tokens": sum(len(answer.outputs[0].token_ids) for answer in answers),
        "texts": [answer.outputs[0].text for answer in answers],
    }
    Path(sys.argv[2]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
