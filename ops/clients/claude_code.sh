#!/bin/sh
# Claude Code against a server of ours: claude_code.sh URL MODEL PROMPT [OPTION of claude]...
# It is installed from npm below CLIENTS_DIR, and has a HOME there, so it knows nothing of the user's.
set -eu
url=$1 model=$2 prompt=$3
shift 3
dir=${CLIENTS_DIR:-/tmp/xylem-clients}/claude-code
mkdir -p "$dir/home"
[ -x "$dir/node_modules/.bin/claude" ] || {
    npm install --silent --no-audit --no-fund --prefix "$dir" @anthropic-ai/claude-code@2.1.197
    node "$dir/node_modules/@anthropic-ai/claude-code/install.cjs" # npm may leave install scripts out
}
exec env -i PATH="$PATH" HOME="$dir/home" ANTHROPIC_BASE_URL="$url" ANTHROPIC_API_KEY="${API_KEY:-none}" \
    ANTHROPIC_MODEL="$model" ANTHROPIC_DEFAULT_HAIKU_MODEL="$model" CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 \
    "$dir/node_modules/.bin/claude" -p "$prompt" "$@" </dev/null
