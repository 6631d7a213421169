"""Says what each limit is, for `xylem --help` and the API's document. Loads nothing, as the command line has to."""

HELP = {
    "models": "Models that may be asked for, by the names that clients use, with commas between.",
    "requests_per_min": "Requests a minute.",
    "tokens_per_min": "Tokens of prompts and answers a minute.",
    "parallel": "Requests at once.",
    "budget": "What may be spent in a day, week or month: 1000000tokens/month, 50money/day.",
    "min_priority": "The most urgent priority that may be asked for, lower is sooner; XYLEM_MIN_PRIORITY if not given.",
    "default_priority": "The priority of requests that ask for none.",
    "default_max_tokens": "The longest answer to requests that say nothing of it.",
    "max_tokens": "The longest answer that may be asked for.",
    "batch_requests_per_min": "Lines of batches a minute, apart from other requests' limits.",
    "batch_tokens_per_min": "Tokens of batches a minute.",
    "batch_lines": "Lines of unfinished batches together.",
    "file_quota": "Bytes of all its files; XYLEM_FILE_QUOTA if not given.",
    "keep_bytes": "Bytes of kept answers and conversations; XYLEM_KEEP_BYTES_PER_KEY if not given.",
    "expires": "The time from which on it is not valid, of UTC: 2027-01-31 or 2027-01-31T12:00; in days from now: 30d.",
}
