// Records executions in the format of recorder.py. Node.js has no memory-mapped files: slots are written to a buffer,
// and a timer appends the buffer to the file (`python -m bench.peers recorder` measures the cost of both recorders).
'use strict'

const fs = require('node:fs')
const path = require('node:path')

const SLOT_BYTES = 24
const SLOTS = 65536
const FLUSH_MS = 50

const buffer = Buffer.alloc(SLOT_BYTES * SLOTS)
let used = 0
let flushed = 0
let descriptor

function flush () {
  if (flushed === used) return
  descriptor ??= fs.openSync(path.join(process.env.BENCH_RECORDS, `${process.pid}-${process.hrtime.bigint()}.records`), 'wx')
  fs.writeSync(descriptor, buffer, flushed, used - flushed)
  flushed = used
}

// Date.now() counts whole milliseconds; performance.now() has microseconds, from an origin on the same clock.
const originMs = performance.timeOrigin

function record (batch, number, dueUs) {
  const startNs = BigInt(Math.round((originMs + performance.now()) * 1000)) * 1000n
  buffer.writeUInt32LE(batch, used)
  buffer.writeUInt32LE(number, used + 4)
  buffer.writeBigUInt64LE(BigInt(dueUs) * 1000n, used + 8)
  buffer.writeBigUInt64LE(startNs, used + 16)
  used += SLOT_BYTES
}

setInterval(flush, FLUSH_MS).unref()
process.on('exit', flush)

module.exports = { record, flush }
