-- Describes tables whose migrations say nothing about them, for `\d+` in psql and for the reference. Migrations that
-- were released are never edited. A comment that is there already is not written again, because writing it locks the
-- table against vacuum.
do $$
declare described record;
begin
  for described in
    select * from (values
      ('cluster', 'One row: the number of shards, the name of the cluster and the secret that signs cursors.'),
      ('leases', 'Which scheduler may fire each shard, until when, and with which fencing token.'),
      ('nodes', 'Schedulers, with their last sign of life.'),
      ('workers', 'Workers, with their pools, tasks and last heartbeat; stopped and lost ones for a while.'),
      ('tenants', 'Tenants, with their weight, quotas and objective.'),
      ('pools', 'Pools, with their limits and whether they are paused.'),
      ('tasks', 'Tasks that a job names or a worker has registered, with the JSON Schema of their arguments.'),
      ('jobs', 'Definitions of jobs: the latest revision of each.'),
      ('members', 'The jobs of each cohort, with all that a fire needs.'),
      ('recounts', 'When cohort_sizes was last counted for each shard.'),
      ('calendars', 'Versions of the calendars of each tenant; the content is in days_off.'),
      ('skips', 'Single occurrences that somebody asked to skip.'),
      ('runs', 'One row per run, inserted when its occurrence fires or it is requested; partitioned by day.'),
      ('queue', 'One row per unfinished run that is due; the only table that changes often.'),
      ('attempts', 'One row per attempt that has ended; the last of a run has its final state. Partitioned by day.'),
      ('logs', 'Lines that handlers logged or printed; partitioned by day.'),
      ('dead_letters', 'Runs that gave up, until somebody redrives or discards them.'),
      ('send_keys', 'The run that each key of a send stands for, until the key expires.'),
      ('graphs', 'Versions of workflow graphs; equal graphs of a tenant share one.'),
      ('graph_nodes', 'The nodes of each graph version.'),
      ('graph_edges', 'The edges of each graph version, with the result of the parent that each requires.'),
      ('flows', 'The state of each workflow run; its row is the lock of everything that happens in it.'),
      ('flow_nodes', 'The state of each node of a workflow run, and of each element of a map.')
    ) as given (table_name, comment)
  loop
    if to_regclass('bellringer.' || described.table_name) is not null
       and obj_description(to_regclass('bellringer.' || described.table_name), 'pg_class')
           is distinct from described.comment then
      execute format('comment on table bellringer.%I is %L', described.table_name, described.comment);
    end if;
  end loop;
end $$;
