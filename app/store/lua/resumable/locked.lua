-- Whether a response is being made in a conversation. Prepended to the scripts that ask.
local function locked(conversation, but_by)
  -- `busy` is never removed: a response's end, its cancelling or expiry unlock the conversation, whoever is its owner.
  local holder = redis.call('HGET', conversation, 'busy')
  return holder and holder ~= but_by and redis.call('EXISTS', holder) == 1 and redis.call('HEXISTS', holder, 'end') == 0
end
