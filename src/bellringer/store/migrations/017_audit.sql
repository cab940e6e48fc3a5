-- What was answered to requests that carry an Idempotency-Key, and the audit: every change, by whom and from where.
set local search_path to bellringer;

-- Written in the transaction of the effect, so that there is never the one without the other. The fingerprint is of the whole
-- request: a key that comes with another one was reused by mistake.
create table idempotency_keys (
  tenant_id   integer not null,                 -- 0: the request was for the whole installation
  route       text not null,
  key         text not null,
  fingerprint bytea not null,
  status      smallint not null,
  headers     jsonb not null,
  body        bytea not null,
  made_at     timestamptz not null,
  primary key (tenant_id, route, key)
);
create index idempotency_keys_old on idempotency_keys (made_at);

-- Every change: by whom, from where, by which request, and what was there before and after; written by the change itself. What a
-- job was and is tell its revisions (this one and the one before), and it is not copied here.
create table audit (
  audit_id   bigint generated always as identity,
  tx         xid8 not null default pg_current_xact_id(),
  at         timestamptz not null,
  tenant_id  integer not null,                  -- 0: of the whole installation
  who        text not null,
  origin     text,                              -- the address that the request came from; null: it came through no API
  request_id text,
  action     text not null,                     -- job.changed, freeze.created, run.cancelled …
  kind       text not null,
  target     text not null,
  revision   integer,                           -- of a job
  before     jsonb,
  after      jsonb,
  primary key (tx, audit_id)                    -- the order in which they are sealed
);
create index audit_newest on audit (tenant_id, audit_id);

-- A job, or what one was, as it is sealed: its definition, in parts, since to join them takes as long as to write them.
create function sealed_as(j jobs) returns text language sql stable as
$$ select bellringer.terms_of(j)::text || j.spec::text || j.schedules::text || j.catchup::text $$;
create function sealed_as(d jsonb) returns text language sql stable as
$$ select (d - array['spec', 'schedules', 'catchup'])::text || (d -> 'spec')::text || (d -> 'schedules')::text || (d -> 'catchup')::text $$;

-- Each seal is a hash over the seal before it and the rows up to a position, so nothing before it can change unseen.
create table audit_seals (
  seal_id   bigint generated always as identity primary key,
  last_tx   xid8 not null,                      -- its rows are those from behind the seal before it up to here
  last_id   bigint not null,
  count     integer not null,
  prev_hash bytea not null,
  hash      bytea not null,
  sealed_at timestamptz not null
);

-- Who acts, as the connection was told.
create function actor(out who text, out origin text, out request_id text) language sql stable parallel safe as $$
  select a ->> 'who', a ->> 'origin', a ->> 'request_id' from (select nullif(current_setting('bellringer.actor', true), '')::jsonb as a) s
$$;

-- What is done to runs is noted where somebody does it; what schedulers and workers do, runs and attempts tell by themselves.
create function note(p_tenant integer, p_action text, p_kind text, p_target text, p_after jsonb) returns void
language plpgsql security definer set search_path = bellringer, pg_temp as $$
begin
  perform own(p_tenant);
  if coalesce(current_setting('bellringer.actor', true), '') = '' then return; end if;
  insert into audit (at, tenant_id, who, origin, request_id, action, kind, target, after)
  select bellringer.now(), p_tenant, a.who, a.origin, a.request_id, p_action, p_kind, p_target, p_after from actor() a;
end $$;

-- A run's key as a target.
create function run_target(p_job uuid, p_at timestamptz, p_slot bigint) returns text language sql immutable parallel safe as
$$ select p_job || ' ' || (extract(epoch from p_at) * 1000000)::bigint || ' ' || p_slot $$;

-- All that one statement creates at once: 10,000 jobs that are created together are one insert here too. Where several callers
-- share a statement, the connection was told of each of them by its job. What it was told is read once, not for each.
create function audit_new_jobs() returns trigger language plpgsql security definer set search_path = bellringer, pg_temp as $$
declare
  told jsonb := nullif(current_setting('bellringer.actor', true), '')::jsonb;
begin
  if told ? 'each' then
    insert into audit (at, tenant_id, who, origin, request_id, action, kind, target, revision)
    select bellringer.now(), n.tenant_id, coalesce(a.actor ->> 'who', n.who), a.actor ->> 'origin', a.actor ->> 'request_id',
           'job.' || n.what, 'job', n.job_id, n.revision
    from added n cross join lateral (select coalesce(told -> 'each' -> n.job_id::text, told) as actor) a;
    return null;
  end if;
  with a as materialized (select * from actor())
  insert into audit (at, tenant_id, who, origin, request_id, action, kind, target, revision)
  select bellringer.now(), n.tenant_id, coalesce(a.who, n.who), a.origin, a.request_id, 'job.' || n.what, 'job', n.job_id, n.revision
  from a cross join added n;
  return null;
end $$;
create trigger audited_start after insert on jobs referencing new table as added
  for each statement execute function audit_new_jobs();

create function audit_job() returns trigger language plpgsql security definer set search_path = bellringer, pg_temp as $$
begin
  insert into audit (at, tenant_id, who, origin, request_id, action, kind, target, revision)
  select bellringer.now(), new.tenant_id, coalesce(a.who, new.who), a.origin, a.request_id, 'job.' || new.what, 'job', new.job_id, new.revision
  from actor() a;
  return null;
end $$;
create trigger audited after update on jobs for each row when (old.revision <> new.revision) execute function audit_job();

-- A row without what is secret; whether that has changed can still be seen.
create function told_of(p_row jsonb, p_other jsonb) returns jsonb language sql immutable as $$
  select p_row || coalesce((
    select jsonb_object_agg(s.name, case when p_other is null or p_other -> s.name = p_row -> s.name then 'hidden' else 'hidden, changed' end)
    from unnest(array['hash', 'sealed', 'previous', 'mark', 'secret', 'root_key']) s (name) where p_row ->> s.name is not null), '{}')
$$;

-- For tables whose rows people change. Arguments: what it is called; the columns that name a row; columns that change by themselves.
create function audited() returns trigger language plpgsql security definer set search_path = bellringer, pg_temp as $$
declare
  was    jsonb := case when tg_op <> 'INSERT' then to_jsonb(old) - string_to_array(tg_argv[2], ',') end;
  is_now jsonb := case when tg_op <> 'DELETE' then to_jsonb(new) - string_to_array(tg_argv[2], ',') end;
  it     jsonb := coalesce(is_now, was);
  done   text := case tg_op when 'INSERT' then 'created' when 'DELETE' then 'deleted' else 'changed' end;
begin
  if was = is_now then return null; end if;
  if tg_op = 'UPDATE' and was ->> 'deleted_at' is null and is_now ->> 'deleted_at' is not null then done := 'deleted'; end if;
  if tg_table_name = 'calendars' and tg_op = 'INSERT' then          -- a change is a new version there
    select to_jsonb(c) into was from calendars c
    where c.tenant_id = new.tenant_id and c.name = new.name and c.version = new.version - 1 and c.deleted_at is null;
    if found then done := 'changed'; end if;
  end if;
  insert into audit (at, tenant_id, who, origin, request_id, action, kind, target, before, after)
  select bellringer.now(), coalesce((it ->> 'tenant_id')::integer, 0),
         coalesce(a.who, case when tg_op = 'INSERT' then
           coalesce(it ->> 'who', it ->> 'changed_by', it ->> 'made_by', it ->> 'created_by') end, 'bellringer'),
         a.origin, a.request_id, tg_argv[0] || '.' || done, tg_argv[0],
         (select string_agg(it ->> c.name, ' ' order by c.place) from unnest(string_to_array(tg_argv[1], ',')) with ordinality c (name, place)),
         told_of(was, is_now), told_of(is_now, was)
  from actor() a;
  return null;
end $$;

create trigger audited after insert or update or delete on tenants for each row execute function audited('tenant', 'name', '');
create trigger audited after insert or update or delete on pools for each row execute function audited('pool', 'name', '');
create trigger audited after insert or update or delete on calendars for each row execute function audited('calendar', 'name', '');
create trigger audited after insert or update or delete on freezes for each row execute function audited('freeze', 'freeze_id', '');
create trigger audited after insert or update or delete on api_keys
  for each row execute function audited('api_key', 'key_id', 'last_used_at');
create trigger audited after insert or update or delete on secrets
  for each row execute function audited('secret', 'secret_id', 'needed_until');
create trigger audited after insert or update or delete on webhook_endpoints
  for each row execute function audited('webhook_endpoint', 'endpoint_id', 'told_tx,told_event');

create trigger audited after update on workers for each row when (old.asked is distinct from new.asked)
  execute function audited('worker', 'worker_id', 'task_ids,pools,busy,seen_at,state');

-- Those that are worked off tell how they begin and end, not how they get on. A catch-up is a consequence, which nobody asked for.
create trigger audited_start after insert on backfills for each row when (new.cause = 'backfill')
  execute function audited('backfill', 'backfill_id', 'cursor,made,passed,made_at,total');
create trigger audited after update on backfills for each row when (new.cause = 'backfill' and old.state is distinct from new.state)
  execute function audited('backfill', 'backfill_id', 'cursor,made,passed,made_at,total');
create trigger audited_start after insert on operations for each row
  execute function audited('operation', 'operation_id', 'ids,position,cursor,paced_at');
create trigger audited after update on operations for each row when (old.state is distinct from new.state)
  execute function audited('operation', 'operation_id', 'ids,position,cursor,paced_at');

-- What is written stays. Only what is past retention goes, by whole seals.
create function kept_for_good() returns trigger language plpgsql as $$
begin
  if tg_op = 'DELETE' and current_setting('bellringer.forgetting', true) = 'audit' then return old; end if;
  raise exception 'the audit is never changed' using errcode = 'BR005';
end $$;
create trigger kept before update or delete on audit for each row execute function kept_for_good();
create trigger kept_whole before truncate on audit for each statement execute function kept_for_good();
create trigger kept before update or delete on audit_seals for each row execute function kept_for_good();
create trigger kept_whole before truncate on audit_seals for each statement execute function kept_for_good();

-- Forget seals older than that, with their rows; a few at a time. Answers how many. The first that stays names the hash that it builds on.
create function forget_audit(p_before timestamptz, p_most integer) returns integer
language plpgsql set search_path = bellringer, pg_temp set bellringer.forgetting = 'audit' as $$
declare
  s audit_seals;
  n integer;
begin
  select * into s from audit_seals
  where seal_id = (select max(o.seal_id) from (select seal_id from audit_seals where sealed_at < p_before order by seal_id limit p_most) o
                   where o.seal_id < (select max(seal_id) from audit_seals));     -- the next seal builds on the last
  if s.seal_id is null then return 0; end if;
  delete from audit where (tx, audit_id) <= (s.last_tx, s.last_id);
  delete from audit_seals where seal_id <= s.seal_id;
  get diagnostics n = row_count;
  return n;
end $$;
