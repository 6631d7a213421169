-- Prepended to the scripts that know of waiting prompts: the fields of `starting:<pool>`, see app/keys/keys.toml.

-- The hashes of its 1st, 4th, 16th … block: the prompts that share the most with another one are found first.
local function beginnings(prompt)
  local found, index = {}, 1
  while index * 8 <= #prompt do
    found[#found + 1] = string.sub(prompt, index * 8 - 7, index * 8)
    index = index * 4
  end
  return found
end
