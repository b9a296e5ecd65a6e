-- release_unique: drop a uniqueness lock, if the given job owns it.
-- needs: context
-- KEYS     1 unique lock
-- ARGV     1 key prefix   2 job id
-- Returns  1 released   0 absent, or owned by another job
if redis.pcall('GET', KEYS[1]) ~= ARGV[2] then return 0 end
return redis.call('DEL', KEYS[1])
