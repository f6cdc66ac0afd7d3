#include "metadata/redis/redis_script.h"

namespace mooncake::metadata {

// The keys, always the same few whatever the number of nodes:
//   meta      hash    revision, floor, next_expiry, document_version, deleted (the token of the
//                     last call that deleted a document)
//   leases    hash    stable_id:epoch -> "<suspect> <usage> <core>"
//   expiry    zset    stable_id:epoch by the time when it lapses
//   changes   zset    stable_id:epoch by the revision of its last change
//   gone      zset    stable_id:epoch by the revision that ended it, the latest 1000
//   tokens    hash    stable_id:epoch -> "<token> <flags>" of the call that last changed it
//   epochs    hash    stable_id -> "<highest>:<live>,<live>"
//   seen      zset    stable_id by the time when its last lease ended; inf while one lives
//   documents hash    name -> "<version> <token> <text>"
//   system/route-policy/default  string
//
// A call that repeats itself after its answer was lost is recognised by its token, and answered
// as the first time. `next_expiry` is a lower bound of the first lapse, which makes the idle
// poll two commands.
const char* const kRedisScript = R"lua(
if redis.replicate_commands then redis.replicate_commands() end
local call, P = redis.call, KEYS[1]
local META, LEASES, EXPIRY, CHANGES = P .. 'meta', P .. 'leases', P .. 'expiry', P .. 'changes'
local GONE, TOKENS, EPOCHS, SEEN = P .. 'gone', P .. 'tokens', P .. 'epochs', P .. 'seen'
local DOCUMENTS, POLICY = P .. 'documents', P .. 'system/route-policy/default'
local GONE_MAX, LAPSED_MAX, MARK_MS = 1000, 10000, 604800000

local function str(n) return string.format('%.0f', n) end
local time = call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local meta = call('HMGET', META, 'revision', 'floor', 'next_expiry')
local revision, floor = tonumber(meta[1] or 0), tonumber(meta[2] or 0)
local next_expiry = tonumber(meta[3] or 0)

local function bump()
  local first = revision == 0
  revision = math.max(revision + 1, now)
  if first then floor = revision end
  call('HSET', META, 'revision', str(revision))
  if first then call('HSET', META, 'floor', str(floor)) end
end

local function epochs_of(stable)
  local high, list = string.match(call('HGET', EPOCHS, stable) or '0:', '^(%d+):(.*)$')
  local live = {}
  for e in string.gmatch(list, '%d+') do live[#live + 1] = tonumber(e) end
  return tonumber(high), live
end

local function save_epochs(stable, high, live)
  local texts = {}
  for i, e in ipairs(live) do texts[i] = str(e) end
  call('HSET', EPOCHS, stable, str(high) .. ':' .. table.concat(texts, ','))
  call('ZADD', SEEN, #live > 0 and '+inf' or str(now), stable)
end

local function finish(id)
  local stable, epoch = string.match(id, '^(.*):(%d+)$')
  epoch = tonumber(epoch)
  bump()  -- First: it is refused where there is no memory, while what erases is not.
  call('HDEL', LEASES, id)
  call('HDEL', TOKENS, id)
  call('ZREM', EXPIRY, id)
  call('ZREM', CHANGES, id)
  local high, live = epochs_of(stable)
  local rest = {}
  for _, e in ipairs(live) do
    if e ~= epoch then rest[#rest + 1] = e end
  end
  save_epochs(stable, math.max(high, epoch), rest)
  call('ZADD', GONE, str(revision), id)
  local extra = call('ZCARD', GONE) - GONE_MAX
  if extra > 0 then
    local last = call('ZRANGE', GONE, extra - 1, extra - 1, 'WITHSCORES')
    floor = math.max(floor, tonumber(last[2]))
    call('ZREMRANGEBYRANK', GONE, 0, extra - 1)
    call('HSET', META, 'floor', str(floor))
  end
end

local function sweep()
  if now < next_expiry then return end
  local lapsed = call('ZRANGEBYSCORE', EXPIRY, '-inf', str(now), 'LIMIT', 0, LAPSED_MAX)
  for _, id in ipairs(lapsed) do finish(id) end
  local first = call('ZRANGE', EXPIRY, 0, 0, 'WITHSCORES')
  if not first[2] then return end
  next_expiry = tonumber(first[2])
  call('HSET', META, 'next_expiry', str(next_expiry))
end

local function extend(id, ttl)
  local expires = now + ttl
  call('ZADD', EXPIRY, str(expires), id)
  if expires < next_expiry then call('HSET', META, 'next_expiry', str(expires)) end
end

-- `high`: the highest epoch from now on.
local function start(stable, epoch, high, live, ttl, token, flags, usage, core)
  local id = stable .. ':' .. str(epoch)
  live[#live + 1] = epoch
  table.sort(live)
  save_epochs(stable, high, live)
  bump()
  call('ZREM', GONE, id)
  call('HSET', LEASES, id, '0 ' .. usage .. ' ' .. core)
  call('HSET', TOKENS, id, token .. ' ' .. flags)
  call('ZADD', CHANGES, str(revision), id)
  extend(id, ttl)
end

local function forget_old_marks()
  local old = call('ZRANGEBYSCORE', SEEN, '-inf', '(' .. str(now - MARK_MS), 'LIMIT', 0, 100)
  for _, stable in ipairs(old) do
    call('HDEL', EPOCHS, stable)
    call('ZREM', SEEN, stable)
  end
end

local function repeated(id, token)
  local kept, flags = string.match(call('HGET', TOKENS, id) or '', '^(%S+) (.*)$')
  return kept == token and flags or nil
end

-- Of the process whose lease it is. Within texts the quotes would be escaped.
local function instance_of(core)
  local instance = string.match(core, '"instance":(%d+)')
  return instance ~= '0' and instance or nil
end

-- Of the process for which it stands by.
local function beside_of(core)
  return tonumber(string.match(core, '"beside":(%d+)') or 0)
end

-- The epoch that has superseded one that has no lease; nil: none. A standby does not.
local function successor_of(stable, epoch, high, live)
  local covered = epoch
  for _, e in ipairs(live) do
    if e > epoch then
      local beside = beside_of(call('HGET', LEASES, stable .. ':' .. str(e)) or '')
      if beside == 0 or beside > covered then return e end
      covered = e
    end
  end
  return high > covered and high or nil
end

local ops = {}

function ops.poll() return {'ok', str(revision)} end

function ops.acquire(stable, ttl, token, beside, replace, usage, core)
  forget_old_marks()
  local high, live = epochs_of(stable)
  for _, e in ipairs(live) do
    if repeated(stable .. ':' .. str(e), token) then return {'ok', str(e)} end
  end
  for i = #live, 1, -1 do
    if str(live[i]) ~= beside then
      local id = stable .. ':' .. str(live[i])
      return {'held', str(live[i]), call('HGET', LEASES, id) or ''}
    end
  end
  local epoch = math.max(high, live[#live] or 0) + 1
  if replace == '1' and #live > 0 then
    finish(stable .. ':' .. beside)
    live = {}
  end
  start(stable, epoch, epoch, live, tonumber(ttl), token, 'a', usage, core)
  return {'ok', str(epoch)}
end

function ops.renew(stable, ttl, token, epoch, usage, core)
  local id = stable .. ':' .. epoch
  epoch = tonumber(epoch)
  local kept = call('HGET', LEASES, id)
  local flags = ''
  if kept then
    local value = '0 ' .. usage .. ' ' .. core
    if kept ~= value then
      local suspect, old_core = string.match(kept, '^(%d) %S* (.*)$')
      local holder, caller = instance_of(old_core or ''), instance_of(core)
      if holder and caller and holder ~= caller then return {'taken', str(epoch)} end
      if suspect == '1' then flags = flags .. 's' end
      if suspect == '1' or old_core ~= core then
        bump()
        call('ZADD', CHANGES, str(revision), id)
        call('HSET', TOKENS, id, token .. ' ' .. flags)
        local high, live = epochs_of(stable)
        if high < epoch and beside_of(core) == 0 then save_epochs(stable, epoch, live) end
      end
      call('HSET', LEASES, id, value)
    else
      flags = repeated(id, token) or ''
    end
    extend(id, tonumber(ttl))
  else
    local high, live = epochs_of(stable)
    local successor = successor_of(stable, epoch, high, live)
    if successor then return {'stale', str(successor)} end
    flags = 'r'
    -- The mark of a standby would be in the way of the one that it stands beside, if that repairs
    -- its lease later and is of a version that looks at no more than the mark.
    if beside_of(core) == 0 then high = math.max(high, epoch) end
    start(stable, epoch, high, live, tonumber(ttl), token, flags, usage, core)
  end
  return {'ok', str(revision), flags}
end

function ops.release(id, instance)
  local kept = call('HGET', LEASES, id)
  if not kept then return {'ok'} end
  local holder = instance_of(kept)
  if not holder or instance == '0' or holder == instance then finish(id) end
  return {'ok'}
end

function ops.suspect(id)
  local kept = call('HGET', LEASES, id)
  if kept and string.sub(kept, 1, 1) == '0' then
    bump()
    call('HSET', LEASES, id, '1' .. string.sub(kept, 2))
    call('ZADD', CHANGES, str(revision), id)
  end
  return {'ok'}
end

function ops.changes(since)
  since = tonumber(since)
  local full = since == 0 or since < floor or since > revision
  local out = {'ok', str(revision), full and '1' or '0'}
  if full then
    for _, item in ipairs(call('HGETALL', LEASES)) do out[#out + 1] = item end
    return out
  end
  local after = '(' .. str(since)
  for _, id in ipairs(call('ZRANGEBYSCORE', CHANGES, after, '+inf')) do
    out[#out + 1] = id
    out[#out + 1] = call('HGET', LEASES, id) or ''
  end
  for _, id in ipairs(call('ZRANGEBYSCORE', GONE, after, '+inf')) do
    out[#out + 1] = id
    out[#out + 1] = ''
  end
  return out
end

function ops.policy(json)
  local present = call('GET', POLICY)
  if present then return {'ok', present} end
  call('SET', POLICY, json)
  return {'ok', json}
end

local function document(name)
  return string.match(call('HGET', DOCUMENTS, name) or '0 - ', '^(%d+) (%S+) (.*)$')
end

function ops.get(name)
  local version, _, text = document(name)
  return {'ok', version, text}
end

function ops.put(name, expected, token, text)
  local version, kept = document(name)
  if kept == token then return {'ok', version} end
  if call('HGET', META, 'deleted') == token then return {'ok', '0'} end
  if version ~= expected then return {'held', version} end
  if string.sub(name, 1, 7) == 'system/' then bump() end
  if text == '' then
    call('HSET', META, 'deleted', token)
    call('HDEL', DOCUMENTS, name)
    return {'ok', '0'}
  end
  local counter = tonumber(call('HGET', META, 'document_version') or 0)
  version = str(math.max(counter + 1, now))
  call('HSET', META, 'document_version', version)
  call('HSET', DOCUMENTS, name, version .. ' ' .. token .. ' ' .. text)
  return {'ok', version}
end

function ops.list(prefix)
  local out = {'ok'}
  for _, name in ipairs(call('HKEYS', DOCUMENTS)) do
    if string.sub(name, 1, #prefix) == prefix then
      local version, _, text = document(name)
      out[#out + 1] = name
      out[#out + 1] = version
      out[#out + 1] = text
    end
  end
  return out
end

sweep()
return ops[ARGV[1]](unpack(ARGV, 2))
)lua";

}  // namespace mooncake::metadata
