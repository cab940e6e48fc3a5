-- The text of a definition that the seals cover, from a job or from a stored revision. The parts are concatenated as
-- text, because merging the documents would take as long as writing them.
create or replace function seal_document(job jobs) returns text language sql stable as
$$ select bellringer.terms_of(job)::text || job.spec::text || job.schedules::text || job.catchup::text $$;

-- The same text from the JSON of a stored revision.
create or replace function seal_document(d jsonb) returns text language sql stable as
$$ select (d - array['spec', 'schedules', 'catchup'])::text || (d -> 'spec')::text || (d -> 'schedules')::text
  || (d -> 'catchup')::text $$;

-- The digest of a definition. Seals hash digests and not the definitions, so that a job can be removed before its audit
-- entries.
create or replace function definition_digest(p_sealed text) returns text language sql immutable parallel safe as
$$ select encode(sha256(convert_to(p_sealed, 'utf8')), 'hex') $$;

-- The actor of this transaction, from the setting bellringer.actor; nulls if there is none.
create or replace function actor(
  out who text, out origin text, out request_id text) language sql stable parallel safe as $$
  select a ->> 'who', a ->> 'origin', a ->> 'request_id'
    from (select nullif(current_setting('bellringer.actor', true), '')::jsonb as a) s
$$;

-- Writes an audit entry for an action of a user on runs; nothing without an actor. Schedulers and workers have none:
-- runs and attempts record what they do.
create or replace function note(p_tenant integer, p_action text, p_kind text, p_target text, p_after jsonb) returns void
language plpgsql security definer set search_path = bellringer, pg_temp as $$
begin
  perform assert_tenant(p_tenant);
  if coalesce(current_setting('bellringer.actor', true), '') = '' then return; end if;
  insert into audit (at, tenant_id, who, origin, request_id, action, kind, target, after)
  select bellringer.now(), p_tenant, a.who, a.origin, a.request_id, p_action, p_kind, p_target, p_after from actor() a;
end $$;

-- The key of a run as the target of an audit entry.
create or replace function run_target(
  p_job uuid, p_at timestamptz, p_slot bigint) returns text language sql immutable parallel safe as
$$ select p_job || ' ' || (extract(epoch from p_at) * 1000000)::bigint || ' ' || p_slot $$;

-- A row with its secrets replaced by 'hidden', or 'hidden, changed' if p_other has another value.
create or replace function redacted(p_row jsonb, p_other jsonb) returns jsonb language sql immutable as $$
  select p_row || coalesce((
    select jsonb_object_agg(given.name, case when p_other is null
      or p_other -> given.name = p_row -> given.name then 'hidden' else 'hidden, changed' end)
    from unnest(array['hash', 'sealed', 'previous', 'keyed_hash', 'secret', 'root_key']) given (name)
      where p_row ->> given.name is not null), '{}')
$$;

-- Deletes at most p_most seals older than p_before, with their audit rows. Returns the number of seals. The oldest
-- remaining seal keeps the hash of the deleted one before it. The setting is set in the body, because only a superuser
-- may name a custom setting in the `set` clause of a function.
create or replace function forget_audit(p_before timestamptz, p_most integer) returns integer
language plpgsql set search_path = bellringer, pg_temp as $$
declare
  s audit_seals;
  n integer;
begin
  select * into s
  from audit_seals
  where seal_id = (
      select max(oldest.seal_id)
      from (select seal_id from audit_seals where sealed_at < p_before order by seal_id limit p_most) oldest
      where oldest.seal_id < (select max(seal_id) from audit_seals));     -- the next seal needs the last one
  if s.seal_id is null then return 0; end if;
  perform set_config('bellringer.forgetting', 'audit', true);
  delete from audit where (tx, audit_id) <= (s.last_tx, s.last_id);
  delete from job_digests where needed_until < (select a.at from audit a order by a.tx, a.audit_id
    limit 1) - interval '1 day';
  delete from audit_seals where seal_id <= s.seal_id;
  get diagnostics n = row_count;
  perform set_config('bellringer.forgetting', '', true);
  return n;
end $$;
