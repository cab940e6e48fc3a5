// The protocol of a peer, as in python/driver.py: `client` executes commands from stdin, `worker` executes jobs.
'use strict'

const readline = require('node:readline')

const settings = JSON.parse(process.env.BENCH_SETTINGS)

function jobs (command) {
  const { batch, count, due_us: dueUs, span_us: spanUs } = command
  return Array.from({ length: count }, (_, number) => ({
    batch, number, due_us: dueUs + (spanUs ? Math.floor(spanUs * number / count) : 0)
  }))
}

function * chunks (items, size) {
  for (let start = 0; start < items.length; start += size) yield items.slice(start, start + size)
}

const dueDate = (job) => new Date(job.due_us / 1000)

async function execute (client, command) {
  const made = jobs(command)
  const startMs = performance.now()
  if (command.do === 'single') {
    for (const job of made) await client.single(job)
  } else {
    await client[command.do](made)
  }
  return { seconds: (performance.now() - startMs) / 1000 }
}

async function serve (open) {
  const client = await open()
  for await (const line of readline.createInterface({ input: process.stdin })) {
    let answer
    try {
      answer = await execute(client, JSON.parse(line))
    } catch (error) {
      answer = { error: String(error.stack ?? error) }
    }
    process.stdout.write(JSON.stringify(answer) + '\n')
  }
  await client.close()
}

// A process that cannot stop in time must not keep the benchmark waiting.
function exitOnSignal (stop) {
  process.once('SIGTERM', () => {
    setTimeout(() => process.exit(0), 3000).unref()
    Promise.resolve(stop()).finally(() => process.exit(0))
  })
}

function main ({ prepare, open, work }) {
  const roles = { prepare, client: () => serve(open), worker: work }
  roles[process.argv[2]]().catch((error) => {
    console.error(error)
    process.exit(1)
  })
}

module.exports = { settings, chunks, dueDate, exitOnSignal, main }
