-- Records a failed call to an origin. p_probe null: the caller saw the breaker closed, so the failure is counted, and
-- the breaker opens after p_most failures. Otherwise the call was the probe of a half-open breaker, which opens again
-- for twice as long. Returns the state if this call opened the breaker, otherwise null.
create or replace function breaker_failed(
  p_tenant integer, p_origin text, p_probe timestamptz, p_most integer, p_rest interval, p_longest interval,
  p_reason text) returns text
language plpgsql set search_path = bellringer, pg_temp as $$
declare
  t timestamptz := bellringer.now();
  s text;
begin
  if p_probe is not null then
    update breakers set state = 'open', opens = opens + 1, failures = failures + 1, reason = p_reason, changed_at = t,
           probe_at = t + least(p_rest * power(2, least(opens, 20)), p_longest)
    where tenant_id = p_tenant and origin = p_origin and state = 'half_open' and probe_at = p_probe
      returning state into s;
    return s;
  end if;
  insert into breakers (tenant_id, origin, state, failures, reason, changed_at)
  values (p_tenant, p_origin, 'closed', 1, p_reason, t)
  on conflict (tenant_id, origin) do update
  set failures = breakers.failures + 1, reason = p_reason, changed_at = t
  where breakers.state = 'closed';
  update breakers set state = 'open', opens = 1, opened_at = t, probe_at = t + p_rest, changed_at = t
  where tenant_id = p_tenant and origin = p_origin and state = 'closed' and failures >= p_most returning state into s;
  return s;
end $$;
