#!/bin/sh
# A streamed chat: sh stream.sh "Name three rivers."
set -eu
url=${OPENAI_BASE_URL:-http://127.0.0.1:8000/v1}
question=${1:-Name three rivers.}

exec curl --silent --show-error --no-buffer "$url/chat/completions" \
  -H 'Content-Type: application/json' \
  -d "{\"stream\": true, \"messages\": [{\"role\": \"user\", \"content\": \"$question\"}]}"
