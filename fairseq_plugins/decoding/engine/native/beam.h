// Beam search: a step is one row of every hypothesis through all layers, and the best continuations of every sentence.
// The last part of kernels.cpp, which includes this.
//
// The sentences are independent of each other: each thread decodes its own ones, until they have ended.
//
// Hypotheses of a sentence read its source together. Each has a row of the cache, and where an earlier slot of it stands
// is said by a table, so nothing of the cache is copied when a hypothesis goes on twice. Scores of all tokens are there
// only for some hundred at a time: of a row their sum is needed, and the best few.

#pragma once

extern "C" {

struct Beams {
    int64_t sentences, size;
    const int64_t* tokens;    // [R], the last one of every hypothesis, R = sentences * size
    const int64_t* lengths;   // [R], position and slot of it; the same within a sentence
    const int64_t* holders;   // [R][holder_stride], row of the sentence in which each slot up to the length stands
    int64_t holder_stride;
    const float* scores;      // [R], sums of log-probabilities
    const int64_t* places;    // [B], of each sentence in the caches
};

// A search that goes on by itself: what `Beams` points to, tokens and log-probabilities in rows as long as `holders`, and
// what becomes of each sentence.
struct Going {
    int64_t* tokens;
    int64_t* lengths;
    int64_t* holders;
    float* log_probs;
    float* scores;
    uint8_t* ignored;         // [B][size], see decoding/state.py
    int64_t budget;           // steps at most
    int64_t enough;           // return when so many sentences have ended
    int64_t rows_together;    // hypotheses of so many sentences are decoded together
    int64_t* steps;           // [B], taken here
    uint8_t* finished;        // [B]
    int64_t* ended;           // [B], outputs so far
    int64_t* output_tokens;   // [B][size][holder_stride], those that end are put after the ones that ended before
    float* output_log_probs;  // the same
    int64_t* output_lengths;  // [B][size]
    float* output_scores;     // [B][size], sums of log-probabilities
};

// The best continuations of every sentence, the best first; parents are -1 where there are none.
struct Candidates {
    Linear projection;
    Limits limits;
    int64_t count;     // C
    float* scores;     // [B][C]
    int64_t* tokens;   // [B][C]
    int64_t* parents;  // [B][C], from 0 within the sentence
};

}  // extern "C"

namespace {

constexpr int64_t CHUNK = 512;     // tokens that are scored at a time; whole panels
constexpr int64_t BLOCK = 64;      // tokens that are looked through at a time

// The hypotheses that take part in a step: at the beginning all are the same, and only the first one does.
struct Hypotheses {
    std::vector<int64_t> row, sentence;

    // finished: [B], sentences that have no row any more; null for none.
    explicit Hypotheses(const Beams& beams, const uint8_t* finished = nullptr) {
        for (int64_t r = 0; r < beams.sentences * beams.size; ++r) {
            if (r % beams.size > 0 && beams.lengths[r] == 0) continue;
            if (finished && finished[r / beams.size]) continue;
            row.push_back(r);
            sentence.push_back(r / beams.size);
        }
    }

    int64_t count() const { return row.size(); }
};

// Whether no hypothesis reads or writes outside of what there is.
bool fits(const Beams& beams, const Memory& own, const Memory& cross) {
    if (own.sentences != cross.sentences * beams.size) return false;
    if (cross.used < 1 || cross.used > cross.capacity || own.used > own.capacity) return false;
    for (int64_t b = 0; b < beams.sentences; ++b) {
        if (beams.places[b] < 0 || beams.places[b] >= cross.sentences) return false;
    }
    for (int64_t r = 0; r < beams.sentences * beams.size; ++r) {
        const int64_t length = beams.lengths[r];
        if (length < 0 || length >= own.used || length > beams.holder_stride) return false;
        if (length != beams.lengths[r - r % beams.size]) return false;
        for (int64_t slot = 0; slot < length; ++slot) {
            const int64_t holder = beams.holders[r * beams.holder_stride + slot];
            if (holder < 0 || holder >= beams.size) return false;
        }
    }
    return true;
}

// Products of a query and LANES keys that stand anywhere.
__attribute__((always_inline)) inline void multiply_keys(const float* query, const float* const* keys, int64_t offset,
                                                         int width, float scale, float* result) {
    Vector sums[LANES] = {};
    int i = 0;
    for (; i + LANES <= width; i += LANES) {
        const Vector values = load(query + i);
        for (int key = 0; key < LANES; ++key) sums[key] += values * load(keys[key] + offset + i);
    }
    float products[LANES];
    sum_lanes<LANES>(sums);
    store(products, sums[0]);
    for (int key = 0; key < LANES; ++key) {
        for (int rest = i; rest < width; ++rest) products[key] += query[rest] * keys[key][offset + rest];
        result[key] = scale * products[key];
    }
}

// out[VECTORS * LANES] = sum of weights * values that stand anywhere.
template <int VECTORS>
__attribute__((always_inline)) inline void weigh_values(const float* weights, int64_t slots, const float* const* keys,
                                                        int64_t offset, float* out) {
    Vector sums[VECTORS] = {};
    for (int64_t slot = 0; slot < slots; ++slot) {
        const Vector weight = splat(weights[slot]);
        for (int v = 0; v < VECTORS; ++v) sums[v] += weight * load(keys[slot] + offset + v * LANES);
    }
    for (int v = 0; v < VECTORS; ++v) store(out + v * LANES, sums[v]);
}

// Self-attention of one hypothesis over `slots` keys and values [2][heads][width] that stand anywhere. Behind the keys
// there are others up to whole vectors of slots.
void attend_anywhere(const float* query, const float* const* keys, int64_t slots, int heads, int width, float* weights,
                     float* out) {
    constexpr int AT_ONCE = 4;
    const int64_t total = static_cast<int64_t>(heads) * width;
    const float scale = 1 / std::sqrt(static_cast<float>(width));
    for (int head = 0; head < heads; ++head) {
        const int64_t offset = static_cast<int64_t>(head) * width;
        for (int64_t slot = 0; slot < slots; slot += LANES) {
            multiply_keys(query + offset, keys + slot, offset, width, scale, weights + slot);
        }
        softmax(weights, slots, slots - 1, nullptr);
        int column = 0;
        for (; column + AT_ONCE * LANES <= width; column += AT_ONCE * LANES) {
            weigh_values<AT_ONCE>(weights, slots, keys, total + offset + column, out + offset + column);
        }
        for (; column + LANES <= width; column += LANES) {
            weigh_values<1>(weights, slots, keys, total + offset + column, out + offset + column);
        }
        for (; column < width; ++column) {
            float sum = 0;
            for (int64_t slot = 0; slot < slots; ++slot) sum += weights[slot] * keys[slot][total + offset + column];
            out[offset + column] = sum;
        }
    }
}

// The hypotheses through all layers, in place in x[rows][D].
void run_hypotheses(const Layer* layers, int32_t count, float* x, int32_t dim, const Beams& beams,
                    const Hypotheses& which, const Memory& own, const Memory& cross) {
    thread_local std::vector<float> wide_memory, attended_memory, normal_memory, weights_memory;
    const int64_t rows = which.count(), slot_size = 2 * dim, row_size = own.capacity * slot_size;
    int widest = 3 * dim;
    for (int i = 0; i < count; ++i) widest = std::max(widest, layers[i].fc1.outputs);
    float* wide = scratch(wide_memory, rows * widest);
    float* attended = scratch(attended_memory, rows * dim);
    float* normal = scratch(normal_memory, rows * dim);
    float* weights = scratch(weights_memory, MORE_ROWS * weights_of(std::max(cross.used, own.used)));
    const std::vector<int64_t> whole_source(MORE_ROWS, cross.used - 1);
    std::vector<const float*> keys(own.used + LANES);
    for (int index = 0; index < count; ++index) {
        const Layer& layer = layers[index];
        const float* input = x;
        const auto begin = [&](const Norm& norm) {
            if (layer.normalize_before) normalize(norm, x, rows, dim, normal);
            input = layer.normalize_before ? normal : x;
        };
        const auto end = [&](const Norm& norm) {
            if (!layer.normalize_before) normalize(norm, x, rows, dim, x);
        };

        begin(layer.self_norm);
        linear(layer.self_qkv, input, rows, wide);
        float* cache = own.key_value + index * own.layer;
        for (int64_t r = 0; r < rows; ++r) {
            const int64_t row = which.row[r], length = beams.lengths[row];
            const float* qkv = wide + r * 3 * dim;
            float* sentence = cache + beams.places[which.sentence[r]] * beams.size * row_size;
            float* here = sentence + row % beams.size * row_size + length * slot_size;
            std::memcpy(here, qkv + dim, slot_size * sizeof(float));
            const int64_t* holder = beams.holders + row * beams.holder_stride;
            for (int64_t slot = 0; slot < length; ++slot) {
                keys[slot] = sentence + holder[slot] * row_size + slot * slot_size;
            }
            std::fill_n(keys.begin() + length, LANES, here);
            attend_anywhere(qkv, keys.data(), length + 1, layer.heads, dim / layer.heads, weights, attended + r * dim);
        }
        linear(layer.self_out, attended, rows, x, NONE, true);
        end(layer.self_norm);

        begin(layer.cross_norm);
        linear(layer.cross_query, input, rows, wide);
        for (int64_t r = 0, next; r < rows; r = next) {
            const int64_t b = which.sentence[r];
            for (next = r + 1; next < rows && which.sentence[next] == b;) ++next;
            const int64_t place = beams.places[b];
            const float* source = cross.key_value + index * cross.layer + place * cross.capacity * slot_size;
            const uint8_t* allowed = cross.allowed ? cross.allowed + place * cross.used : nullptr;
            in_parts(next - r, MORE_ROWS, [&](int64_t part, int64_t some) {
                ATTEND[some - 1](wide + (r + part) * dim, dim, source, allowed, whole_source.data(), layer.heads,
                                 dim / layer.heads, weights, attended + (r + part) * dim);
            });
        }
        linear(layer.cross_out, attended, rows, x, NONE, true);
        end(layer.cross_norm);

        begin(layer.final_norm);
        linear(layer.fc1, input, rows, wide, layer.activation);
        linear(layer.fc2, wide, rows, x, NONE, true);
        end(layer.final_norm);
    }
}

// The best few of the tokens of a row, in no order; of equal ones those with the lower numbers.
struct Best {
    int64_t wanted;
    float* scores;
    int64_t* tokens;
    int64_t size = 0, lowest = 0;
    float least = NO_SCORE;  // of those that are kept, once there are enough

    bool takes(float score, int64_t token) const {
        return score > least || (size == wanted && score == least && token < tokens[lowest]);
    }

    void add(float score, int64_t token) {
        if (size < wanted) {
            scores[size] = score;
            tokens[size++] = token;
            if (size < wanted) return;
        } else {
            scores[lowest] = score;
            tokens[lowest] = token;
        }
        // Of equal ones the last token goes first.
        lowest = 0;
        for (int64_t i = 1; i < wanted; ++i) {
            const bool later = scores[i] == scores[lowest] && tokens[i] > tokens[lowest];
            if (scores[i] < scores[lowest] || later) lowest = i;
        }
        least = scores[lowest];
    }

    void look_through(const float* from, int64_t count, int64_t token) {
        for (int64_t begin = 0; begin < count; begin += BLOCK) {
            const int64_t end = std::min(begin + BLOCK, count);
            float highest = from[begin];
            for (int64_t i = begin; i < end; ++i) highest = from[i] > highest ? from[i] : highest;
            if (!(highest > least)) continue;
            for (int64_t i = begin; i < end; ++i) {
                // Tokens come in their order: of equal ones the first stays.
                if (from[i] > least) add(from[i], token + i);
            }
        }
    }
};

// The outputs `begin` .. `end` of a layer as a layer of its own; `begin` begins with a panel.
Linear part_of(const Linear& layer, int64_t begin, int64_t end) {
    Linear part = layer;
    part.weight = static_cast<const char*>(layer.weight) + begin * layer.inputs * bytes_of(layer.form);
    part.bias = layer.bias ? layer.bias + begin : nullptr;
    part.scale = layer.scale ? layer.scale + begin : nullptr;
    part.outputs = static_cast<int32_t>(end - begin);
    return part;
}

// What may not be gets no score; `from` has the tokens `begin` .. `end` of a row at a position of the output.
void constrain(const Limits& limits, float* from, int64_t begin, int64_t end, int64_t position) {
    const auto is_here = [&](int64_t token) { return begin <= token && token < end; };
    if (position >= limits.max_len) {
        for (int64_t i = 0; i < end - begin; ++i) from[i] = begin + i == limits.eos ? from[i] : NO_SCORE;
    }
    if (is_here(limits.pad)) from[limits.pad - begin] = NO_SCORE;
    if (is_here(limits.unk) && from[limits.unk - begin] > NO_SCORE) from[limits.unk - begin] -= limits.unk_penalty;
    if (is_here(limits.eos) && position < limits.min_len) from[limits.eos - begin] = NO_SCORE;
}

// Of states x[rows][D] of the hypotheses: the best tokens of each, with their log-probabilities.
struct Continuations {
    int64_t wanted;
    std::vector<float> scores;    // [rows][wanted]
    std::vector<int64_t> tokens;  // [rows][wanted]
    std::vector<int64_t> counts;  // [rows], how many there are

    Continuations(const Candidates& asked, const float* x, const Beams& beams, const Hypotheses& which)
        : wanted(asked.count), scores(which.count() * wanted), tokens(which.count() * wanted), counts(which.count()) {
        const int64_t rows = which.count();
        const int64_t vocabulary = asked.limits.vocabulary, chunks = (vocabulary + CHUNK - 1) / CHUNK;
        std::vector<float> highest(rows * chunks), sums(rows * chunks);
        // Chunks are shared out among threads. No sum depends on how, and the best of all are among those of each.
        const int64_t products = rows * products_of(asked.projection);
        const int64_t parts = std::max<int64_t>(1, std::min({threads::available(), chunks, products / MIN_PRODUCTS}));
        std::vector<float> part_scores(parts * rows * wanted);
        std::vector<int64_t> part_tokens(parts * rows * wanted);
        std::vector<Best> best;
        for (int64_t i = 0; i < parts * rows; ++i) {
            best.push_back({wanted, part_scores.data() + i * wanted, part_tokens.data() + i * wanted});
        }
        const auto score = [&](int64_t part) {
            thread_local std::vector<float> values_memory;
            float* values = scratch(values_memory, rows * CHUNK);
            for (int64_t chunk = part * chunks / parts; chunk < (part + 1) * chunks / parts; ++chunk) {
                const int64_t begin = chunk * CHUNK, end = std::min(begin + CHUNK, vocabulary), size = end - begin;
                linear(part_of(asked.projection, begin, end), x, rows, values);
                for (int64_t r = 0; r < rows; ++r) {
                    float* here = values + r * size;
                    float top = here[0];
                    for (int64_t i = 0; i < size; ++i) top = here[i] > top ? here[i] : top;
                    highest[r * chunks + chunk] = top;
                    sums[r * chunks + chunk] = sum_exponentials(here, size, top);
                    Best& own = best[part * rows + r];
                    if (asked.limits.unk_penalty >= 0 && !(top > own.least)) continue;
                    constrain(asked.limits, here, begin, end, beams.lengths[which.row[r]]);
                    own.look_through(here, size, begin);
                }
            }
        };
        if (parts == 1) {
            score(0);
        } else {
            threads::run(parts, score);
        }
        for (int64_t r = 0; r < rows; ++r) {
            float top = highest[r * chunks], sum = 0;
            for (int64_t chunk = 0; chunk < chunks; ++chunk) top = std::max(top, highest[r * chunks + chunk]);
            for (int64_t chunk = 0; chunk < chunks; ++chunk) {
                sum += sums[r * chunks + chunk] * std::exp(highest[r * chunks + chunk] - top);
            }
            const float shift = top + std::log(sum);
            Best all{wanted, scores.data() + r * wanted, tokens.data() + r * wanted};
            for (int64_t part = 0; part < parts; ++part) {
                const Best& own = best[part * rows + r];
                for (int64_t i = 0; i < own.size; ++i) {
                    if (all.takes(own.scores[i], own.tokens[i])) all.add(own.scores[i], own.tokens[i]);
                }
            }
            counts[r] = all.size;
            for (int64_t i = 0; i < all.size; ++i) all.scores[i] -= shift;
        }
    }
};

// The best candidates of the sentences, of the continuations of each hypothesis.
void choose(const Candidates& asked, const Continuations& found, const Beams& beams, const Hypotheses& which) {
    struct Candidate {
        float score;
        int64_t parent, token;
        bool operator<(const Candidate& other) const {
            if (score != other.score) return score > other.score;
            return parent != other.parent ? parent < other.parent : token < other.token;
        }
    };
    constexpr uint32_t MINUS_INFINITY = 0xff800000;
    std::vector<Candidate> candidates;
    for (int64_t row = 0, next; row < which.count(); row = next) {
        const int64_t sentence = which.sentence[row];
        candidates.clear();
        for (next = row; next < which.count() && which.sentence[next] == sentence; ++next) {
            const int64_t parent = which.row[next] - sentence * beams.size;
            for (int64_t i = 0; i < found.counts[next]; ++i) {
                const float score = found.scores[next * found.wanted + i] + beams.scores[which.row[next]];
                candidates.push_back({score, parent, found.tokens[next * found.wanted + i]});
            }
        }
        const int64_t count = std::min<int64_t>(asked.count, candidates.size());
        std::partial_sort(candidates.begin(), candidates.begin() + count, candidates.end());
        for (int64_t i = 0; i < asked.count; ++i) {
            const int64_t to = sentence * asked.count + i;
            asked.tokens[to] = i < count ? candidates[i].token : 0;
            asked.parents[to] = i < count ? candidates[i].parent : -1;
            if (i < count) {
                asked.scores[to] = candidates[i].score;
            } else {
                std::memcpy(asked.scores + to, &MINUS_INFINITY, sizeof(MINUS_INFINITY));
            }
        }
    }
}

// One step: embed the last token of every hypothesis, run the layers, and find the best candidates of every sentence.
void step_beams(const Layer* layers, int32_t count, const Ends& ends, int32_t dim, const Beams& beams,
                const Hypotheses& which, const Memory& own, const Memory& cross, const Candidates& asked) {
    thread_local std::vector<float> x_memory;
    const int64_t rows = which.count();
    float* x = scratch(x_memory, rows * dim);
    for (int64_t r = 0; r < rows; ++r) {
        const int64_t row = which.row[r];
        const float* embedding = ends.embedding + beams.tokens[row] * dim;
        float* to = x + r * dim;
        for (int i = 0; i < dim; ++i) to[i] = ends.scale * embedding[i];
        if (!ends.positions) continue;
        const float* position = ends.positions + std::min(beams.lengths[row], ends.position_count - 1) * dim;
        for (int i = 0; i < dim; ++i) to[i] += position[i];
    }
    if (ends.embedding_norm.weight) normalize(ends.embedding_norm, x, rows, dim, x);
    run_hypotheses(layers, count, x, dim, beams, which, own, cross);
    if (ends.final_norm.weight) normalize(ends.final_norm, x, rows, dim, x);
    choose(asked, Continuations(asked, x, beams, which), beams, which);
}

// What of a sentence's candidates goes on, `size` of them: parents are counted within the sentence.
struct Chosen {
    std::vector<int64_t> tokens, parents;
    std::vector<float> scores;
    std::vector<uint8_t> ends;  // which of the best `size` candidates are outputs

    explicit Chosen(int64_t size) : tokens(size), parents(size), scores(size), ends(size) {}

    // What ends, and what goes on: see ../../search/beam.py. Of the candidates, the best first, those that end among the
    // first `size` are outputs; the first `size` that do not end go on. Returns how many end, or -1 where a parent is none
    // of the hypotheses.
    int64_t take(const float* score, const int64_t* token, const int64_t* parent, int64_t count, int64_t eos,
                 uint8_t* ignored) {
        const int64_t size = tokens.size();
        int64_t ended = 0;
        order.clear();
        late.clear();
        none.clear();
        for (int64_t i = 0; i < count; ++i) {
            const bool is_ignored = i < size && ignored[i];
            const bool is_end = token[i] == eos && score[i] > NO_SCORE && !is_ignored;
            if (i < size) ends[i] = is_end;
            if (i < size) ended += is_end;
            if (parent[i] >= size) return -1;
            (parent[i] < 0 ? none : is_end || is_ignored ? late : order).push_back(i);
        }
        const int64_t going = order.size();
        order.insert(order.end(), late.begin(), late.end());
        order.insert(order.end(), none.begin(), none.end());
        for (int64_t i = 0; i < size; ++i) {
            const int64_t from = order[i];
            parents[i] = std::max<int64_t>(parent[from], 0);
            tokens[i] = token[from];
            scores[i] = score[from];
            ignored[i] = i >= going;
        }
        return ended;
    }

private:
    std::vector<int64_t> order, late, none;
};

// Some of the sentences, as if there were no others.
Beams part_of(Beams beams, int64_t first, int64_t last) {
    const int64_t row = first * beams.size;
    beams.sentences = last - first;
    for (auto* values : {&beams.tokens, &beams.lengths}) *values += row;
    beams.holders += row * beams.holder_stride;
    beams.scores += row;
    beams.places += first;
    return beams;
}

Candidates part_of(Candidates asked, int64_t first) {
    asked.scores += first * asked.count;
    asked.tokens += first * asked.count;
    asked.parents += first * asked.count;
    return asked;
}

Going part_of(Going going, int64_t first, int64_t size, int64_t stride) {
    const int64_t row = first * size;
    for (auto* values : {&going.lengths, &going.output_lengths}) *values += row;
    for (auto* values : {&going.tokens, &going.holders, &going.output_tokens}) *values += row * stride;
    for (auto* values : {&going.log_probs, &going.output_log_probs}) *values += row * stride;
    for (auto* values : {&going.scores, &going.output_scores}) *values += row;
    for (auto* values : {&going.steps, &going.ended}) *values += first;
    going.ignored += row;
    going.finished += first;
    return going;
}

// The search of some sentences, until they have ended.
class Searching {
public:
    Searching(const Beams& beams, const Candidates& asked, const Going& going)
        : beams(beams), asked(asked), going(going), last(beams.tokens, beams.tokens + beams.sentences * beams.size),
          chosen(beams.size) {
        this->beams.tokens = last.data();
    }

    // A step; false where nothing is left to do, or there is no room for it.
    bool step(const Layer* layers, int32_t count, const Ends& ends, int32_t dim, const Memory& own, const Memory& cross,
              std::atomic<int64_t>& ended) {
        const Hypotheses which(beams, going.finished);
        if (which.count() == 0) return false;
        for (const int64_t row : which.row) {
            if (beams.lengths[row] >= own.used) return false;
        }
        step_beams(layers, count, ends, dim, beams, which, own, cross, asked);
        for (int64_t b = 0; b < beams.sentences; ++b) {
            if (going.finished[b]) continue;
            const int64_t from = b * asked.count;
            const bool is_last = beams.lengths[b * beams.size] >= asked.limits.max_len;
            const bool has_end = chosen.take(asked.scores + from, asked.tokens + from, asked.parents + from, asked.count,
                                             asked.limits.eos, going.ignored + b * beams.size) > 0;
            ++going.steps[b];
            if (has_end) put_out(b);
            if (has_end && (is_last || going.ended[b] == beams.size)) {
                going.finished[b] = true;
                ++ended;
            } else if (is_last) {
                return !(stuck = true);
            } else {
                follow(b);
            }
        }
        return true;
    }

    bool stuck = false;  // a sentence had to end and might not

private:
    Beams beams;
    const Candidates asked;
    const Going going;
    std::vector<int64_t> last, holders;
    Chosen chosen;

    // Write down the hypotheses of a sentence that end, up to as many as are wanted.
    void put_out(int64_t b) {
        const int64_t size = beams.size, stride = beams.holder_stride, length = beams.lengths[b * size];
        for (int64_t i = 0; i < size && going.ended[b] < size; ++i) {
            if (!chosen.ends[i]) continue;
            const int64_t parent = b * size + std::max<int64_t>(asked.parents[b * asked.count + i], 0);
            const int64_t to = b * size + going.ended[b]++;
            const float score = asked.scores[b * asked.count + i];
            int64_t* tokens = going.output_tokens + to * stride;
            float* log_probs = going.output_log_probs + to * stride;
            for (int64_t column = 1; column <= length; ++column) {
                const int64_t from = (b * size + beams.holders[parent * stride + column]) * stride + column;
                *tokens++ = going.tokens[from];
                *log_probs++ = going.log_probs[from];
            }
            *tokens = asked.limits.eos;
            *log_probs = score - beams.scores[parent];
            going.output_lengths[to] = length + 1;
            going.output_scores[to] = score;
        }
    }

    // Every row of a sentence becomes that of the hypothesis which it continues; what comes next is its own.
    void follow(int64_t b) {
        const int64_t size = beams.size, stride = beams.holder_stride, row = b * size, next = beams.lengths[row] + 1;
        holders.resize(size * next);
        for (int64_t i = 0; i < size; ++i) {
            const int64_t parent = row + chosen.parents[i];
            std::copy_n(going.holders + parent * stride, next, holders.begin() + i * next);
            going.log_probs[(row + i) * stride + next] = chosen.scores[i] - going.scores[parent];
        }
        for (int64_t i = 0; i < size; ++i) {
            std::copy_n(holders.begin() + i * next, next, going.holders + (row + i) * stride);
            going.tokens[(row + i) * stride + next] = last[row + i] = chosen.tokens[i];
            going.scores[row + i] = chosen.scores[i];
            going.lengths[row + i] = next;
        }
    }
};

}  // namespace

extern "C" {

// What ends of every sentence, and what goes on, as `Chosen` has it. Returns how many end, or -1 where a parent is none of
// the hypotheses.
//
// ignored: [B][size], in and out, as in decoding/state.py.
// ends: [B][size].
// tokens, parents, scores, log_probs: [R] of what goes on; parents are rows.
int64_t choose_hypotheses(const float* candidate_scores, const int64_t* candidate_tokens, const int64_t* candidate_parents,
                          int64_t count, const Beams* beams, int64_t eos, uint8_t* ignored, uint8_t* ends,
                          int64_t* tokens, int64_t* parents, float* scores, float* log_probs) {
    const int64_t size = beams->size;
    int64_t ended = 0;
    Chosen chosen(size);
    for (int64_t b = 0; b < beams->sentences; ++b) {
        const int64_t from = b * count;
        const int64_t ending = chosen.take(candidate_scores + from, candidate_tokens + from, candidate_parents + from, count,
                                           eos, ignored + b * size);
        if (ending < 0) return -1;
        ended += ending;
        std::copy_n(chosen.ends.begin(), size, ends + b * size);
        for (int64_t i = 0; i < size; ++i) {
            const int64_t row = b * size + i;
            parents[row] = b * size + chosen.parents[i];
            tokens[row] = chosen.tokens[i];
            scores[row] = chosen.scores[i];
            log_probs[row] = scores[row] - beams->scores[parents[row]];
        }
    }
    return ended;
}

// Run a step of beam search, and leave the best candidates of every sentence; or, where `going` is not null, steps until
// its sentences have ended, its budget is used up or there is no room for another one. Returns 0; or 1 and does nothing
// where something points outside of the caches, or 2 where a token is none of the vocabulary; or 3 where nothing may end
// after the longest output.
//
// own: what every layer's self-attention keeps, a row of every hypothesis.
// cross: what every layer's cross-attention reads, a row of every sentence.
int32_t run_beams(const Layer* layers, int32_t count, const Ends* ends, int32_t dim, const Beams* beams,
                  const Memory* own, const Memory* cross, const Candidates* asked, const Going* going) {
    if (!fits(*beams, *own, *cross)) return 1;
    const int64_t size = beams->size, batch = beams->sentences, threads = threads::available();
    for (int64_t row = 0; row < batch * size; ++row) {
        if (beams->tokens[row] < 0 || beams->tokens[row] >= ends->mask_id) return 2;
        if (!going) continue;
        // A token before the output, all that the limit allows, and EOS.
        const int64_t length = beams->lengths[row], stride = beams->holder_stride;
        if (length > asked->limits.max_len || stride < asked->limits.max_len + 2) return 1;
        // What a hypothesis ends with it holds itself.
        if (beams->holders[row * stride + length] != row % size) return 1;
    }
    const int64_t products = batch * size * (products_of(layers, count) + products_of(asked->projection));
    int64_t parts = std::max<int64_t>(1, std::min({threads, batch, products / MIN_PRODUCTS}));
    if (going) {
        const int64_t most = std::max<int64_t>(1, going->rows_together / size);
        parts = std::max(parts, (batch + most - 1) / most);
    }
    std::atomic<int64_t> ended{0}, next{0};
    std::atomic<bool> stuck{false};
    const auto work = [&](int64_t) {
        for (int64_t part; (part = next++) < parts;) {
            const int64_t first = part * batch / parts, last = (part + 1) * batch / parts;
            const Beams mine = part_of(*beams, first, last);
            const Candidates found = part_of(*asked, first);
            if (!going) {
                step_beams(layers, count, *ends, dim, mine, Hypotheses(mine), *own, *cross, found);
                continue;
            }
            Searching searching(mine, found, part_of(*going, first, size, beams->holder_stride));
            for (int64_t i = 0; i < going->budget && ended < going->enough; ++i) {
                if (!searching.step(layers, count, *ends, dim, *own, *cross, ended)) break;
            }
            if (searching.stuck) stuck = true;
        }
    };
    if (parts > 1 && threads > 1) {
        threads::run(std::min(threads, parts), work);
    } else {
        work(0);
    }
    return stuck ? 3 : 0;
}

}  // extern "C"
