# Objects, threads, fibers, compaction, forks.
require 'digest'
require 'json'
require 'zlib'

state = 1
rnd = ->(n) { state = (state * 1_103_515_245 + 12_345) % 4_294_967_296; (state >> 16) % n }
kept = {}
200_000.times { |i| kept[rnd.(5000)] = { text: 'x' * rnd.(300), list: (0..rnd.(10)).to_a, number: i } }
puts Digest::SHA256.hexdigest(JSON.generate(kept.sort.to_a))
GC.start
GC.compact if GC.respond_to?(:compact)
puts kept.size
threads = 8.times.map do |n|
  Thread.new { (0...20_000).sum { |i| "thread #{n} #{i}".hash.zero? ? 1 : (n * i).to_s.size } }
end
puts threads.map(&:value).join(' ')
fibers = 2000.times.map { |n| Fiber.new { 3.times { |i| Fiber.yield(n * i) }; 'y' * 100 } }
puts fibers.sum { |fiber| fiber.resume + fiber.resume + fiber.resume }
fibers = nil
packed = Zlib::Deflate.deflate((0...100_000).map { |i| i * i % 256 }.pack('C*'))
puts Digest::SHA256.hexdigest(packed), Zlib::Inflate.inflate(packed).size
GC.stress = true
300.times { |i| [i.to_s * 10, { i => [i] }, /a#{i}/.match('a12')] }
GC.stress = false
puts((1..60).count { |i| pid = fork { exit!(('z' * i * 1000).size == i * 1000 ? 0 : 1) }; Process.wait(pid); $?.success? })
puts "#{2**20_000}".size, (1..3000).inject(:*).to_s.size
