#include "servo.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <stdexcept>

namespace robotrl {

namespace {

enum class Order : int64_t { EPISODE = 1, STOP = 2, LEAVE = 3 };
enum class AnswerKind : int64_t { CHUNK = 1, REFUSED = 2, FAILED = 3 };

constexpr int64_t FIRST_DEADLINE_NS = 5'000'000, IDLE_NS = 2'000'000, HEARTBEAT_NS = 100'000'000, LOOK_NS = 200'000;
constexpr size_t FRAME_FLOATS = 8;

std::string field(const char* name, int64_t value) { return "\"" + std::string(name) + "\": " + std::to_string(value); }

}  // namespace

Servo::Servo(const Settings& settings, Clock& clock, int64_t (*parent)())
    : settings_(settings),
      clock_(clock),
      parent_(parent),
      servo_memory_(int(settings.servo_handle), size_t(settings.servo_bytes), settings.servo_magic),
      robot_memory_(int(settings.robot_handle), size_t(settings.robot_bytes), settings.robot_magic),
      inference_memory_(int(settings.inference_handle), size_t(settings.inference_bytes), settings.inference_magic),
      orders_(servo_memory_.at(size_t(settings.order_at)), 0),
      introduction_(servo_memory_.at(size_t(settings.introduction_at)), size_t(settings.text_bytes)),
      summary_(servo_memory_.at(size_t(settings.summary_at)), size_t(settings.text_bytes)),
      records_(servo_memory_.at(size_t(settings.ring_at)), settings.slot_bytes, settings.slots, settings.max_values),
      observer_(settings, robot_memory_, clock),
      commander_(settings, robot_memory_, observer_, clock),
      chain_(settings.limits),
      check_(settings.limits, settings.ports, settings.watched),
      latency_(settings.inference_s),
      asker_(settings, inference_memory_, latency_, clock),
      plan_(settings.chunk_length, settings.execute, int64_t(settings.limits.low.size()), settings.guided),
      history_(settings.ports),
      guard_(settings.guard) {
    const size_t chunk = size_t(settings.chunk_length) * settings.limits.low.size();
    next_.actions.resize(chunk);
    taken_.actions.resize(chunk);
    plan_.chunk.actions.resize(chunk);
    numbers_.resize(size_t(check_.floats()));
    record_.reserve(size_t(settings.max_values));
    policy_action_.reserve(settings.limits.low.size());
    toward_.resize(settings.limits.low.size());
    between_.reserve(settings.limits.low.size());
    lateness_us_.reserve(size_t(settings.most_lateness));
    answer_.values.reserve(size_t(settings.max_chunk));
    for (OpenTick* opened : {&open_, &now_open_}) {
        opened->observation.reserve(size_t(settings.observation_size));
        opened->frames.reserve(settings.cameras.size());
    }
}

void Servo::introduce(const std::string& scheduling) { introduction_.write("{\"scheduling\": \"" + scheduling + "\"}"); }

void Servo::run() {
    int64_t beat = clock_.now_ns();
    try {
        while (true) {
            if (!order(order_)) {
                if (serial_ && clock_.now_ns() - beat > HEARTBEAT_NS) {
                    beat = clock_.now_ns();
                    commander_.hold();
                }
                clock_.sleep(IDLE_NS);
            } else if (Order(order_.kind) == Order::EPISODE) {
                in_episode_ = true;
                episode(order_);
                in_episode_ = false;
                beat = clock_.now_ns();
            } else {
                if (serial_ && Order(order_.kind) == Order::STOP) commander_.damp();
                return;
            }
        }
    } catch (const RunEnded& ended) {
        if (ended.kind != RecordKind::NONE) report(ended.kind, false);
    }
}

// The next order; false if there is none.
bool Servo::order(Message& into) {
    if (parent_() != servo_memory_.creator_pid()) {
        if (serial_) commander_.damp();
        throw RunEnded{RecordKind::NONE};
    }
    if (!orders_.read(into)) return false;
    if (into.tick == orders_done_) {
        check_silence(clock_.now_ns() - into.stamp_ns);
        return false;
    }
    orders_done_ = into.tick;
    return true;
}

// Ends the run if the supervisor hangs, since nobody could stop it any more.
void Servo::check_silence(int64_t silent_ns) {
    const int64_t limit_ns = in_episode_ ? settings_.supervisor_timeout_ns : settings_.idle_timeout_ns;
    if (silent_ns <= limit_ns) return;
    commander_.damp();
    fault_ = "{\"kind\": \"silent\", " + field("limit_ns", limit_ns) + "}";
    throw RunEnded{RecordKind::FAULT};
}

// episodes

void Servo::episode(const Message& order) {
    chain_.reset();
    history_.reset();
    check_.reset();
    outdate();
    is_open_ = false;
    start_known_ = settings_.accept_start;
    starting_ = false;
    tick_ = -1;
    policy_action_.clear();
    recovering_ = false;
    recoveries_ = 0;
    between_sent_ = false;
    asker_.take_round_trip();
    serial_ = order.episode;
    state_id_ = order.state_id;
    commander_.begin(serial_, state_id_);
    reset_robot();
    move_to_start();
    start_ = clock_.now_ns() + FIRST_DEADLINE_NS;
    const bool success = steps();
    // the last action must not outlive its episode
    commander_.hold();
    report(RecordKind::END, success);
}

void Servo::reset_robot() {
    int64_t beat = 0;
    int missing = Observer::OBSERVATION;
    const int64_t deadline = clock_.now_ns() + settings_.reset_timeout_ns;
    while (clock_.now_ns() < deadline) {
        if (clock_.now_ns() - beat > HEARTBEAT_NS) {
            // again and again, so that a robot whose reset takes long sees afterwards that the servo lives
            beat = clock_.now_ns();
            commander_.reset();
        }
        missing = observer_.missing(serial_);
        if (missing == Observer::NOTHING) {
            if (moves_to_start()) return;
            observer_.open_tick(now_open_, 0, clock_.now_ns(), serial_);
            return check_start(now_open_);
        }
        if (order(order_)) {
            commander_.damp();
            throw RunEnded{RecordKind::STOPPED};
        }
        clock_.sleep(IDLE_NS);
    }
    fault_ = "{\"kind\": \"reset\", " + field("episode", serial_) + ", " + field("missing", missing) + "}";
    throw RunEnded{RecordKind::FAULT};
}

void Servo::move_to_start() {
    if (!moves_to_start()) return;
    starting_ = true;
    away_ = 0;
    away_at_ = NAN;
    start_ = clock_.now_ns() + FIRST_DEADLINE_NS;
    steps();
    starting_ = false;
    if (away_ >= 0) {
        commander_.damp();
        char number[40];
        std::snprintf(number, sizeof number, "%.17g", double(away_at_));
        fault_ = "{\"kind\": \"start_pose\", " + field("episode", serial_) + ", " + field("state_id", state_id_) + ", " +
                 field("element", away_) + ", \"value\": " + (std::isfinite(away_at_) ? number : "null") + "}";
        throw RunEnded{RecordKind::FAULT};
    }
    chain_.hand_over();
    check_.reset();
    tick_ = -1;
    observer_.open_tick(now_open_, 0, clock_.now_ns(), serial_);
    check_start(now_open_);
}

// Decides a control tick of the motion to the start pose.
void Servo::move(const OpenTick& opened) {
    const int64_t found = observed(opened);
    if (found != NONE) return finish(opened, found | STARTING, nullptr);
    const std::vector<float>&sent = chain_.sent(), &pose = settings_.start_pose;
    away_ = -1;
    for (size_t i = 0; i < pose.size(); ++i) {
        const float step = settings_.start_step[i];
        toward_[i] = smaller_of(larger_of(pose[i], sent[i] - step), sent[i] + step);
        const float measured =
            numbers_[size_t(settings_.limits.measured_at[i])] / settings_.limits.measured_factor[i];
        if (away_ >= 0 || (sent[i] == pose[i] && std::fabs(measured - pose[i]) <= settings_.start_tolerance[i])) continue;
        away_ = int64_t(i);
        away_at_ = measured;
    }
    finish(opened, STARTING, toward_.data());
}

// Refuses a hand-over outside the poses that training saw, once the first whole and finite observation is there.
void Servo::check_start(const OpenTick& opened) {
    if (start_known_ || !opened.complete) return;
    gather(opened);
    start_known_ = all_finite(numbers_.data(), int64_t(numbers_.size()));
    const float* values = numbers_.data();
    for (size_t p = 0; p < settings_.ports.size(); ++p) {
        const NumberPort& port = settings_.ports[p];
        const int64_t count = int64_t(port.places.size());
        // element by element, and each from its oldest row on; numbers that are not finite are left to the safety chain
        for (size_t element = 0; element < port.start_low.size(); ++element)
            for (int64_t at = int64_t(element); at < count; at += port.row) {
                const float value = values[at];
                if (!std::isfinite(value) || (value >= port.start_low[element] && value <= port.start_high[element]))
                    continue;
                char number[40];
                std::snprintf(number, sizeof number, "%.17g", double(value));
                fault_ = "{\"kind\": \"start\", " + field("episode", serial_) + ", " + field("state_id", state_id_) +
                         ", " + field("port", int64_t(p)) + ", " + field("at", at) + ", \"value\": " + number + "}";
                throw RunEnded{RecordKind::FAULT};
            }
        values += count;
    }
}

bool Servo::steps() {
    for (int64_t step = 0;; ++step) {
        wait(deadline(step));
        const int64_t woke = clock_.now_ns();
        note_lateness(woke - deadline(step));
        // missed servo ticks are skipped, never caught up
        step = std::max(step, (woke - start_) * settings_.steps / settings_.period_ns);
        const int64_t tick = step / settings_.steps;
        if (tick > tick_ && !is_open_) miss(tick - tick_ - 1);
        if (tick > tick_) {
            if (ended(tick)) return observer_.solved();
            control(tick, woke);
            if (is_open_) between(settings_.steps - 1);
        } else {
            look();
            // while a tick waits for its action, the one before it has been reached
            between(is_open_ ? settings_.steps - 1 : step);
        }
    }
}

// Command of a servo tick that decides none: the reflex's, or the last one again.
void Servo::between(int64_t step) {
    if (!reflexed()) commander_.repeat(step);
}

// An observation that is stale or not finite is left to the next control tick.
bool Servo::reflexed() {
    if (!guard_ || policy_action_.empty()) return false;
    observer_.update(serial_);
    const Message* newest = observer_.last();
    if (newest == nullptr || clock_.now_ns() - newest->stamp_ns > settings_.max_age_ns) return false;
    const std::vector<float>& flat = newest->values;
    if (int64_t(flat.size()) != settings_.observation_size || !all_finite(flat.data(), int64_t(flat.size())))
        return false;
    const float* recovery = guard_->recovery(flat.data(), policy_action_.data());
    recoveries_ += recovery != nullptr;
    if ((recovery != nullptr) == recovering_) return false;
    recovering_ = recovery != nullptr;
    const Verdict verdict = chain_.between(policy_action_.data(), int64_t(policy_action_.size()), recovery);
    between_sent_ = true;
    commander_.send(verdict.mode, verdict.reason, chain_.sent(), chain_.before());
    return true;
}

bool Servo::ended(int64_t tick) {
    observer_.update(serial_);
    if (order(order_)) stop(tick);
    if (starting_) return away_ < 0 || tick >= settings_.max_start_ticks;
    return observer_.done() || tick >= settings_.max_ticks;
}

void Servo::stop(int64_t tick) {
    outdate();
    observer_.open_tick(now_open_, tick, clock_.now_ns(), serial_);
    asker_.request.present = false;
    asker_.answer_ns = 0;
    finish(now_open_, STOPPED | (starting_ ? STARTING : NONE), nullptr);
    commander_.settle();
    throw RunEnded{RecordKind::STOPPED};
}

// control ticks

void Servo::control(int64_t tick, int64_t woke) {
    if (is_open_) {
        if (planned(tick) == nullptr) {
            const int64_t stamp_ns = open_.stamp_ns;
            look();
            if (is_open_ && too_old(stamp_ns)) finish(open_, ACTION_LATE, nullptr);
            return;
        }
        // go on with the last chunk: the tick that waited has no command of its own
        is_open_ = false;
        miss(tick - open_.tick);
    }
    look();
    tick_ = tick;
    OpenTick& opened = now_open_;
    observer_.open_tick(opened, tick, woke, serial_);
    if (starting_) return move(opened);
    if (history_.used() && int64_t(opened.observation.size()) == settings_.observation_size) {
        gather(opened);
        if (check_.is_plausible(numbers_.data())) history_.take(tick, numbers_);
    }
    if (opened.complete) check_start(opened);
    if (const int64_t found = observed(opened); found != NONE) return finish(opened, found, nullptr);
    if (next_.present && tick >= takeover_) {
        plan_.start(next_);
        next_.present = false;
    }
    const int64_t lead = std::max(settings_.least_lead,
                                  lead_ticks(latency_.p95_ns(), settings_.period_ns, settings_.most_lead));
    if (!asker_.request.present && !next_.present && plan_.wants(tick, lead)) ask(opened, lead);
    const float* action = opened.asked < 0 || lead ? planned(tick) : nullptr;
    if (action == nullptr && next_.present) {
        plan_.start(next_);
        next_.present = false;
        action = planned(tick);
    }
    if (action != nullptr) return finish(opened, NONE, action);
    if (!asker_.request.present) {
        // its action is too late: infer again
        ask(opened, 0);
    } else if (too_old(asker_.request.stamp_ns)) {
        return finish(opened, ACTION_LATE, nullptr);
    }
    std::swap(open_, now_open_);
    is_open_ = true;
}

// Checks the observation of a control tick, whose numbers are gathered.
int64_t Servo::observed(const OpenTick& opened) {
    if (!opened.complete) {
        const bool whole = int64_t(opened.observation.size()) == settings_.observation_size;
        return whole ? OBS_STALE : OBS_NOT_FINITE;
    }
    gather(opened);
    const int64_t now = opened.stamp_ns + opened.age_ns;
    const int64_t found = check_.check(numbers_.data(), opened.frames, double(opened.age_ns) * 1e-9,
                                       double(now - start_) * 1e-9, chain_.last());
    if (found != NONE) return found;
    chain_.place(numbers_.data());
    if (!words_misfit()) return NONE;
    asker_.refused.clear();
    asker_.misfit = true;
    return OBS_MISFIT;
}

// Tells whether an instruction is none.
bool Servo::words_misfit() const {
    const float* values = numbers_.data();
    for (const NumberPort& port : settings_.ports) {
        const int64_t count = int64_t(port.places.size());
        if (port.last_word >= 0) {
            for (int64_t i = 0; i < count; ++i)
                if (!(values[i] >= 0.0f && values[i] <= float(port.last_word)) || std::rint(values[i]) != values[i])
                    return true;
            for (int64_t row = 0; port.first_is_none && row < count; row += port.row) {
                bool any = false;
                for (int64_t i = 0; i < port.row; ++i) any = any || values[row + i] > 0.0f;
                if (!any) return true;
            }
        }
        values += count;
    }
    return false;
}

// The chunk's action for a tick; null if there is none, or it is too late.
const float* Servo::planned(int64_t tick) {
    const int64_t index = plan_.index(tick);
    if (index < 0) return nullptr;
    const double age_s = double(clock_.now_ns() - plan_.chunk.stamp_ns) * 1e-9;
    if (!in_time(settings_.limits, age_s, plan_.chunk.delay + index, settings_.control_period_s)) {
        plan_.drop();
        ++plan_.expired;
        return nullptr;
    }
    return plan_.action(index);
}

// Decides, sends and records a control tick.
void Servo::finish(const OpenTick& opened, int64_t observed, const float* action) {
    is_open_ = false;
    const int64_t width = int64_t(settings_.limits.low.size());
    const float* recovery = nullptr;
    if (guard_ && action != nullptr && opened.complete && !starting_) recovery = guard_->recovery(opened.observation.data(), action);
    if (between_sent_) between_ = chain_.sent();
    const Verdict verdict = chain_.decide(observed, action, width, recovery);
    policy_action_.clear();
    if (action != nullptr && verdict.mode == ACTIVE && !starting_) policy_action_.assign(action, action + width);
    recovering_ = verdict.mode == ACTIVE && recovery != nullptr;
    int64_t cursor = 0;
    if (action != nullptr && plan_.chunk.present) {
        cursor = plan_.index(opened.tick) + 1;
        if (asker_.request.present) ++asker_.request.executed;
    }
    commander_.send(verdict.mode, verdict.reason, chain_.sent(), chain_.before());
    int64_t waited_ns = asker_.take_round_trip();
    if (observed & (ACTION_LATE | INFERENCE_FAILED) && asker_.request.present)
        waited_ns = clock_.now_ns() - asker_.request.asked_ns;
    write_record(opened, verdict, action, cursor, waited_ns);
    lateness_us_.clear();
    if (verdict.mode == ACTIVE) return;
    const bool hung = observed & ACTION_LATE && asker_.request.present;
    outdate();
    if (verdict.mode == DAMP && !(observed & STOPPED)) {
        commander_.settle();
        note_damped(hung ? clock_.now_ns() - asker_.request.asked_ns : -1);
        throw RunEnded{RecordKind::FAULT};
    }
}

void Servo::write_record(const OpenTick& opened, const Verdict& verdict, const float* action, int64_t cursor,
                         int64_t waited_ns) {
    const int64_t present = (action != nullptr ? 1 : 0) + (opened.observation.empty() ? 0 : 2) +
                            (between_sent_ ? 4 : 0) + 8 * recoveries_;
    const int64_t numbers[RECORD_NUMBERS] = {
        int64_t(starting_ ? RecordKind::START : RecordKind::TICK),
        serial_,
        opened.tick,
        opened.tick * settings_.period_ns,
        opened.woke - (start_ + opened.tick * settings_.period_ns),
        opened.age_ns,
        opened.read_ns,
        clock_.now_ns() - opened.woke,
        waited_ns,
        plan_.chunk.present ? plan_.chunk.decision : -1,
        cursor,
        verdict.mode,
        verdict.reason,
        opened.asked,
        opened.committed,
        present,
    };
    record_.assign(opened.observation.begin(), opened.observation.end());
    if (action != nullptr) record_.insert(record_.end(), action, action + settings_.limits.low.size());
    record_.insert(record_.end(), chain_.sent().begin(), chain_.sent().end());
    if (between_sent_) record_.insert(record_.end(), between_.begin(), between_.end());
    for (size_t i = 0; i < settings_.cameras.size(); ++i) {
        const CameraFrame frame = opened.complete ? opened.frames[i] : CameraFrame{};
        const int64_t fields[4] = {frame.number, frame.stamp_ns, frame.episode, frame.checksum};
        float bits[FRAME_FLOATS];
        std::memcpy(bits, fields, sizeof bits);
        record_.insert(record_.end(), bits, bits + FRAME_FLOATS);
    }
    record_.insert(record_.end(), lateness_us_.begin(), lateness_us_.end());
    records_.write(numbers, record_);
    recoveries_ = recovering_;
    between_sent_ = false;
}

void Servo::note_damped(int64_t hung_ns) {
    fault_ = "{\"kind\": \"damped\", " + field("episode", serial_) + ", " + field("state_id", state_id_) + ", " +
             field("hung_ns", hung_ns) + ", " + field("frozen", check_.frozen()) +
             ", \"misfit\": " + (asker_.misfit ? "true" : "false") +
             ", \"refused\": " + (asker_.refused.empty() ? "null" : asker_.refused) + "}";
}

// inference

void Servo::gather(const OpenTick& opened) {
    float* into = numbers_.data();
    for (const NumberPort& port : settings_.ports)
        for (int64_t place : port.places) *into++ = opened.observation[size_t(place)];
}

// Asks for the chunk of a tick's observation.
void Servo::ask(OpenTick& opened, int64_t lead) {
    gather(opened);
    const float* planned = nullptr;
    int64_t count = 0;
    if (!settings_.prefix.empty() && lead && plan_.chunk.present) {
        const int64_t first = opened.tick - plan_.chunk.zero_tick;
        count = std::max<int64_t>(0, std::min(settings_.most_planned, plan_.length - first));
        planned = plan_.action(first);
    }
    const int64_t delay = settings_.trained ? std::min(lead, count) : 0;
    const int64_t due = start_ + plan_.due(opened.tick, lead, delay) * settings_.period_ns;
    const std::vector<float>& numbers = history_.used() ? history_.whole(numbers_) : numbers_;
    asker_.ask(opened, numbers, planned, count, lead, serial_, settings_.wake_early ? due : 0);
}

// Takes the answer to the request, if it is there.
void Servo::look() {
    ChunkRequest request;
    if (!asker_.answered(answer_, request)) return;
    if (request.abandoned) {
        if (is_open_) ask(open_, 0);
        return;
    }
    if (AnswerKind(answer_.kind) == AnswerKind::CHUNK) return take(answer_, request);
    asker_.refused = asker_.failure.read();
    asker_.misfit = false;
    if (!is_open_) return;
    const int64_t failed = too_old(request.stamp_ns) ? ACTION_LATE : INFERENCE_FAILED;
    finish(open_, AnswerKind(answer_.kind) == AnswerKind::REFUSED ? int64_t(OBS_REFUSED) : failed, nullptr);
}

// Places a chunk in time.
void Servo::take(const Message& answer, const ChunkRequest& request) {
    const int64_t now_tick = std::max<int64_t>(0, (clock_.now_ns() - start_) / settings_.period_ns);
    if (answer.values.size() != taken_.actions.size()) throw std::runtime_error("a chunk has another length");
    taken_.present = true;
    taken_.actions.assign(answer.values.begin(), answer.values.end());
    taken_.decision = request.decision;
    taken_.stamp_ns = request.stamp_ns;
    const int64_t zero_tick = request.tick + request.delay;
    taken_.zero_tick = zero_tick;
    taken_.delay = request.delay;
    if (!is_open_) {
        const int64_t takeover = request.tick + request.lead;
        if (tick_ < takeover) {
            next_ = taken_;
            takeover_ = takeover;
        } else {
            plan_.start(taken_);
        }
        return;
    }
    const int64_t waiting = open_.tick;
    // where nothing was executed since the request, the chunk begins now, however long it took
    const int64_t index =
        request.executed ? std::min(std::max<int64_t>(0, waiting - zero_tick), plan_.length - 1) : 0;
    taken_.zero_tick = waiting - index;
    plan_.start(taken_);
    const double age_s = double(clock_.now_ns() - request.stamp_ns) * 1e-9;
    const bool timely = in_time(settings_.limits, age_s, request.delay + index, settings_.control_period_s);
    finish(open_, timely ? NONE : ACTION_LATE, taken_.actions.data() + index * plan_.width);
    miss(std::max<int64_t>(0, now_tick - waiting));
    tick_ = std::max(tick_, now_tick);
    if (plan_.chunk.present && !request.executed) {
        taken_.zero_tick = tick_;
        plan_.start(taken_);
    }
}

// Gives up chunk and request: they are of a time before a bad tick.
void Servo::outdate() {
    plan_.drop();
    next_.present = false;
    if (asker_.request.present) asker_.request.abandoned = true;
}

// time

// Sleeps until a deadline, and looks for an answer meanwhile if a tick waits for it.
void Servo::wait(int64_t deadline) {
    while (is_open_) {
        const int64_t now = clock_.now_ns();
        if (now >= deadline) return;
        clock_.sleep_until(std::min(deadline, now + LOOK_NS));
        look();
    }
    clock_.sleep_until(deadline);
}

void Servo::note_lateness(int64_t late_ns) {
    if (int64_t(lateness_us_.size()) < settings_.most_lateness) lateness_us_.push_back(float(double(late_ns) * 1e-3));
}

// the supervisor

std::string Servo::counted(int64_t misses, const SafetyCounts& counts) const {
    std::string reasons;
    for (int bit = 0; bit < REASONS; ++bit)
        reasons += (bit ? ", " : "") + field(settings_.reasons[size_t(bit)].c_str(), counts.reasons[bit]);
    return "{" + field("misses", misses) + ", " + field("ticks", counts.ticks) + ", " +
           field("held", counts.modes[HOLD]) + ", " + field("damped", counts.modes[DAMP]) + ", \"reasons\": {" +
           reasons + "}}";
}

void Servo::report(RecordKind kind, bool success) {
    const Message* last = observer_.last();
    summary_.write("{" + field("expired", plan_.expired) + ", \"policy\": " + counted(misses_, chain_.counts()) +
                   ", \"start\": " + counted(start_misses_, chain_.start_counts()) + ", " +
                   field("made_up", last ? last->reason : 0) + ", " + field("lost_ns", last ? last->lost_ns : 0) +
                   ", " + field("torn", observer_.torn()) + ", \"fault\": " + fault_ + "}");
    const int64_t numbers[RECORD_NUMBERS] = {int64_t(kind), serial_, 0, success};
    record_.clear();
    records_.write(numbers, record_);
}

}  // namespace robotrl
