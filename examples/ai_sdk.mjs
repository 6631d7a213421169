// The AI SDK of Vercel: an answer in pieces. npm install ai @ai-sdk/openai-compatible
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { streamText } from "ai";

const xylem = createOpenAICompatible({
  name: "xylem",
  baseURL: process.env.OPENAI_BASE_URL ?? "http://127.0.0.1:8000/v1",
  apiKey: process.env.OPENAI_API_KEY ?? "none",
  includeUsage: true,
});
const answer = streamText({
  model: xylem(process.env.MODEL ?? "my-model"),
  prompt: "Tell me about Paris.",
  maxOutputTokens: 50,
  onError: ({ error }) => {
    throw error;
  },
});
for await (const text of answer.textStream) process.stdout.write(text);
console.log("\n", await answer.usage);
