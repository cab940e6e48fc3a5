-- Whether stored commit positions are ahead of this server's: the database was restored from a dump. Until
-- finish_restore has run, new events would not be delivered, and new audit entries would sort before sealed ones.
create or replace function positions_are_ahead() returns boolean language sql stable
  set search_path = bellringer, pg_temp as $$
  select coalesce(stored.tx >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint + position_offset(), false)
  from (
    select greatest((select tx from audit order by tx desc, audit_id desc limit 1)::text::bigint,
                    (select last_tx from audit_seals order by seal_id desc limit 1)::text::bigint,
                    (select tx from events order by event_id desc limit 1)::text::bigint,
                    (select tx from troubles_read)::text::bigint) as tx) stored
$$;

-- The newest sign of life in the database: the last heartbeat or restore. Null: the database was never used.
create or replace function last_sign_of_life() returns timestamptz language sql stable
  set search_path = bellringer, pg_temp as $$
  select greatest((select max(seen_at) from nodes), (select max(seen_at) from workers),
                  (select max(finished_at) from restores))
$$;

-- Prepares a restored database for its processes, which must not run meanwhile. Numbers that the lost database may
-- have given out after p_recovered_to (null: the last heartbeat) are skipped: fencing tokens, ids of workers, events,
-- deliveries, operations and so on, and commit positions. So nothing that survived the restore outside of the database
-- (a process, a message, a cursor, a webhook receiver) takes a new thing for one that it knows.
--
-- Returns the row of restores. Repeated without a sign of life in between, it changes nothing and returns the same row.
-- Locks restores exclusively, so that calls run one after the other, and all leases.
create or replace function finish_restore(p_recovered_to timestamptz, p_who text, p_note text) returns restores
language plpgsql set search_path = bellringer, pg_temp as $$
declare
  -- more than a database gives out between a backup and its restore
  token_gap    constant bigint := 1000000;
  id_gap       constant bigint := 1000000000;
  worker_gap   constant bigint := 1000000;              -- worker ids are integers
  position_gap constant bigint := 4294967296;
  made     restores;
  sequence text;
  highest  bigint;
  number   bigint := pg_current_xact_id()::text::bigint;
begin
  lock table restores in exclusive mode;
  select * into made from restores order by restore_id desc limit 1;
  if made.finished_at >= last_sign_of_life() and not positions_are_ahead() then return made; end if;
  made.recovered_to := least(coalesce(p_recovered_to, last_sign_of_life(), clock_timestamp()), clock_timestamp());
  made.positions_were_ahead := positions_are_ahead();
  made.finished_at := clock_timestamp();
  select count(*), count(*) filter (where run.worker_id is not null or run.blocked & SENT = SENT)
    into made.unfinished, made.held from queue run;

  update leases lease set token = lease.token + token_gap, holder = null, expires_at = '-infinity';
  foreach sequence in array array['events.event_id', 'audit.audit_id', 'deliveries.delivery_id',
    'operations.operation_id', 'backfills.backfill_id', 'webhook_endpoints.endpoint_id', 'workers.worker_id',
    'notifications.notification_id'] loop
    perform skip_numbers(pg_get_serial_sequence('bellringer.' || split_part(sequence, '.', 1),
                                                split_part(sequence, '.', 2)),
                         case sequence when 'workers.worker_id' then worker_gap else id_gap end);
  end loop;
  perform skip_numbers('bellringer.log_lines', id_gap);

  highest := greatest(number + position_offset(),
    (select tx from audit order by tx desc limit 1)::text::bigint,
    (select last_tx from audit_seals order by last_tx desc limit 1)::text::bigint,
    (select tx from events order by tx desc limit 1)::text::bigint,
    (select sent_tx from webhook_endpoints order by sent_tx desc limit 1)::text::bigint,
    (select tx from notification_position)::text::bigint,
    (select tx from troubles_read)::text::bigint);
  execute format('create or replace function position_offset() returns bigint language sql immutable '
                 'parallel safe as %L',
                 format('select %s::bigint', highest + position_gap - number));

  insert into restores (recovered_to, finished_at, unfinished, held, positions_were_ahead, who, note)
  values (made.recovered_to, made.finished_at, made.unfinished, made.held, made.positions_were_ahead, p_who, p_note)
  returning * into made;
  insert into audit (at, tenant_id, who, action, kind, target, after)
  values (bellringer.now(), 0, p_who, 'cluster.restored', 'cluster', 'restore ' || made.restore_id, to_jsonb(made));
  return made;
end $$;

-- Advances a sequence by p_gap, so that numbers which were given out before the restore are not given again.
create or replace function skip_numbers(p_sequence text, p_gap bigint) returns void language plpgsql
  set search_path = bellringer, pg_temp as $$
begin
  execute format('select setval(%L, last_value + %s) from %s', p_sequence, p_gap, p_sequence::regclass);
end $$;
